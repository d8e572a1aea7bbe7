"""When a silent job is taken for one that hangs."""

import pytest

from perfd.capture.node.job_guards import GuardSettings, JobProgress, refusal

SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("progress", "longest_s"),
    [
        (JobProgress(last_line_unix_ns=0), 300),
        (JobProgress(last_line_unix_ns=0, nccl_timeout_s=100.0), 50),
        (JobProgress(last_line_unix_ns=0, step_times_s=[(1, 20.0)], steps_per_line=3), 360),
    ],
    ids=["half of the usual timeout of NCCL", "half of its own", "and one line more"],
)
def test_a_job_may_be_silent_for_half_of_its_timeout_and_one_line(progress, longest_s):
    settings = GuardSettings(nccl_timeout_s=600.0)
    assert refusal(progress, settings, longest_s * SECOND_NS) == ""
    assert "it hangs" in refusal(progress, settings, longest_s * SECOND_NS + SECOND_NS // 10)


def test_the_usual_step_is_the_median_of_the_newest_twenty():
    times = [(number, 1.0 if number <= 30 else 2.0) for number in range(1, 41)]
    assert JobProgress(step_times_s=times).step_time_s == 1.5
