"""The rules that ship, on real runs through the whole system."""

import pytest

from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, replay


@pytest.mark.parametrize(
    ("name", "expected"),
    [("dp4", set()), ("pp2dp2", set()), ("pp4_few", {"PerfdPipelineStall"})],
)
def test_a_large_bubble_raises_an_alert_and_a_healthy_job_none(name: str, expected: set[str]) -> None:
    (job,) = replay(ReplayOptions(recording=bundled(name))).summaries
    assert {alert.name for alert in job.alerts} == expected
