from __future__ import annotations

import dataclasses

import pytest

from perfd.analysis.communication import Communication
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.troubles import Trouble
from perfd.model import EventKind
from perfd.recording import bundled
from perfd.session.replay import ReplayOptions, replay
from perfd.session.words import NO_JOB, findings_in_words, in_words


@pytest.fixture(scope="module")
def summary():
    (summary,) = replay(ReplayOptions(recording=bundled("dp4_slow2"))).summaries
    return summary


def alert(**changes):
    return {
        "job": "dp4_slow2",
        "name": "Slow",
        "first_step": 7,
        "annotations": {"summary": "it is slow."},
        "fired_at_unix_s": 10.0,
        "captures": [],
    } | changes


def test_it_begins_with_what_limits_the_job_and_who_is_to_blame(summary):
    lines = in_words([summary]).splitlines()
    assert lines[0] == "# dp4_slow2"
    assert lines[2].startswith("A slow rank limits this job: rank 2 (confidence ")
    assert all(line.startswith("- ") for line in lines[3 : 3 + len(summary.bottleneck.evidence)])
    assert any(line.startswith("What to do: ") for line in lines)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_bottleneck_has_a_sentence(summary, kind):
    finding = Finding(
        kind=kind, confidence=0.5, culprits=[Culprit(kind="gpu", id="n/0")], evidence=["Because."]
    )
    text = in_words([dataclasses.replace(summary, bottleneck=finding)])
    assert "this job: gpu n/0" in text
    assert ("confidence 50%" in text) == (kind is not Kind.UNKNOWN)


def test_what_is_not_known_is_said_to_be_unknown_and_never_zero(summary):
    bare = dataclasses.replace(
        summary,
        step_time_s=type(summary.step_time_s)(),
        tokens_per_s=None,
        samples_per_s=None,
        model_flops_per_s_per_gpu=None,
        mfu_ratio=None,
        mfu_upper_ratio=None,
        communication=type(summary.communication)(),
        pipeline=type(summary.pipeline)(),
        parallel=type(summary.parallel)(),
        data=type(summary.data)(),
        optimizer=type(summary.optimizer)(),
        memory=type(summary.memory)(),
        goodput_ratio=None,
    )
    _, *numbers = [line for line in in_words([bare]).splitlines() if line.startswith("    ")]
    (line,) = numbers
    name, *told = line.replace(",", "").split()
    assert name == "unknown"
    assert {"MFU", "stall", "optimizer", "goodput"} <= set(told)


def test_how_much_of_communication_is_waiting_stands_beside_it_where_that_is_known(summary):
    kernels = Communication(share_ratio=0.4, transfer_ratio=0.16, wait_ratio=0.24, source="nccl plugin")

    told = in_words([dataclasses.replace(summary, communication=kernels)])
    untold = in_words(
        [dataclasses.replace(summary, communication=Communication(share_ratio=0.4, source="nccl plugin"))]
    )

    line = "communication         40.0 % (nccl plugin)"
    assert f"{line}: 16.0 % moves data, 24.0 % waits for other ranks\n" in told
    assert f"{line}\n" in untold


def test_what_the_job_complained_of_stands_below_the_numbers_and_beside_the_diagnosis(summary):
    trouble = Trouble(
        kind=EventKind.LOG_ERROR,
        message="torch.OutOfMemoryError: CUDA out of memory.",
        count=3,
        ranks=(1, 2),
        step=17,
        first_unix_s=1.0,
        last_unix_s=2.0,
    )
    troubled = dataclasses.replace(summary, troubles=[trouble] * 10)

    line = "- torch.OutOfMemoryError: CUDA out of memory. (ranks 1, 2, after step 17, 3 times)\n"
    for text in (in_words([troubled]), "\n".join(findings_in_words([troubled]))):
        assert text.count(line) == 8
        assert "- 2 more are in the summary's `troubles`.\n" in text
    assert "Errors and warnings" not in in_words([summary])


def test_why_mfu_is_unknown_is_said_where_flops_are_known(summary):
    unseen = dataclasses.replace(summary, mfu_ratio=None, mfu_upper_ratio=None, peak_flops_per_s=None)
    assert "MFU                   unknown: perfd saw no GPU whose peak it knows\n" in in_words([unseen])


def test_alerts_of_a_job_stand_below_it_oldest_first(summary):
    alerts = [
        alert(name="Later", fired_at_unix_s=20.0, first_step=None, annotations={}),
        alert(captures=["slow-1", "slow-2"]),
        alert(name="Elsewhere", job="other"),
        alert(name="Nobody", job=None),
    ]
    text = in_words([summary], alerts)
    assert "- Slow at step 7: it is slow. Captures asked for: slow-1, slow-2.\n- Later.\n" in text
    assert "Elsewhere" not in text
    assert text.rstrip().endswith("Alerts that belong to no job:\n- Nobody at step 7: it is slow.")


def capture(**changes):
    return {
        "id": "slow-1",
        "job": "dp4_slow2",
        "tool": "nsys",
        "alert": "Slow",
        "state": "done",
        "reason": "",
        "report": None,
        "ranks": [],
    } | changes


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (
            {"state": "refused", "reason": "nsys cannot make a report."},
            "- slow-1 (nsys, alert Slow): refused: nsys cannot make a report.\n",
        ),
        (
            {"report": {"words": "Rank 2 is slow.", "path": "/out/perfd.report.html"}},
            "- slow-1 (nsys, alert Slow): done. Rank 2 is slow. Report: /out/perfd.report.html.\n",
        ),
        (
            {"alert": None, "ranks": [{"files": [{"path": "/out/rank0.sqlite"}]}]},
            "- slow-1 (nsys, by hand): done. Files in /out.\n",
        ),
        ({"state": "open", "tool": None}, "- slow-1 (no tool, alert Slow): not ended.\n"),
    ],
)
def test_how_a_capture_ended_stands_below_the_alerts_of_its_job(summary, ended, said):
    text = in_words([summary], captures=[capture(**ended)])
    assert f"No alert fired.\n\nCaptures:\n{said}" in text


def test_a_capture_of_no_job_that_is_told_stands_by_itself(summary):
    text = in_words([summary], captures=[capture(job="n1/127.0.0.1:30000")])
    assert text.endswith("\n\nCaptures of others:\n- slow-1 (nsys, alert Slow): done.\n")


def test_a_job_without_alerts_says_so(summary):
    assert "No alert fired." in in_words([summary])


def test_without_any_job_it_says_what_that_means():
    assert in_words([], notes=["the log was empty."]) == f"{NO_JOB}\n\nNote: the log was empty.\n"


def test_a_name_cannot_speak_to_the_terminal(summary):
    named = dataclasses.replace(summary, name="llama\x1b[31m\r\x9b2J\nred")

    for text in (in_words([named]), *findings_in_words([named])):
        assert all(sign == "\n" or sign.isprintable() for sign in text)
