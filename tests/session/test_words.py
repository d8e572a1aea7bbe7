from __future__ import annotations

import dataclasses
import resource

import pytest

from perfd.analysis.collectives.pipeline_wait import SOURCE_WAITING
from perfd.analysis.communication.exposed_by_dimension import Dimension
from perfd.analysis.communication.exposed_communication import Communication
from perfd.analysis.diagnosis import JobPast
from perfd.analysis.findings import Culprit, FaultPeriod, Finding, Kind
from perfd.analysis.hang.error_events import ErrorSummary
from perfd.analysis.steps.pipeline_bubble import Pipeline
from perfd.model import EventKind
from perfd.recording import bundled
from perfd.report.render.markdown import to_markdown
from perfd.report.sources.from_summary import report_of_summary
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.text import save_results
from perfd.session.text.summary_text import NO_JOB, findings_in_words, in_words, wrapped


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
    assert lines[2].startswith("A straggler limits this job: rank 2 (measured)")
    assert all(line.startswith("- ") for line in lines[3 : 3 + len(summary.bottleneck.evidence)])
    assert any(line.startswith("For the next run: ") for line in lines)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_bottleneck_has_a_sentence(summary, kind):
    finding = Finding(
        kind=kind, confidence=0.5, culprits=[Culprit(kind="gpu", id="n/0")], evidence=["Because."]
    )
    text = in_words([dataclasses.replace(summary, findings=[finding])])
    assert f"{kind.sentence}: gpu n/0" in text
    assert ("(likely)." in text) == (kind is not Kind.UNKNOWN)


def test_weak_evidence_says_what_may_limit_the_job_and_old_evidence_that_it_may_be_over(summary):
    finding = Finding(kind=Kind.COMMUNICATION, confidence=0.4, may_be_over=True)
    text = in_words([dataclasses.replace(summary, findings=[finding])])
    assert "Communication may limit this job (possible, may be over)." in text


@pytest.mark.parametrize("kind", [Kind.NONE, Kind.UNKNOWN, Kind.MISSING_TELEMETRY, Kind.HANG, Kind.QUEUEING])
def test_other_sentences_stay_as_they_are_with_weak_evidence(kind):
    assert Finding(kind=kind, confidence=0.4).headline == kind.sentence


@pytest.mark.parametrize(
    ("steady", "said"), [(0, "1 line, step 150; not steady"), (1, "1 line, step 150; steady")]
)
def test_a_single_step_is_written_in_the_singular(summary, steady, said):
    steps = dataclasses.replace(summary.steps, count=1, first=150, last=150, steady_count=steady)
    (line,) = [
        one.split("  ")[-1].strip()
        for one in in_words([dataclasses.replace(summary, steps=steps)]).splitlines()
        if one.startswith("    steps ")
    ]
    assert line == said


def test_what_is_not_known_is_said_to_be_unknown_and_never_zero(summary):
    bare = dataclasses.replace(
        summary,
        step_time_s=type(summary.step_time_s)(),
        efficiency=type(summary.efficiency)(),
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
    name, *reported = line.replace(",", "").split()
    assert name == "unknown"
    assert {"MFU", "stall", "optimizer", "goodput"} <= set(reported)


def test_how_much_of_communication_is_waiting_stands_beside_it_where_that_is_known(summary):
    kernels = Communication(share_ratio=0.4, transfer_ratio=0.16, wait_ratio=0.24, source="nccl plugin")

    reported = in_words([dataclasses.replace(summary, communication=kernels)])
    unreported = in_words(
        [dataclasses.replace(summary, communication=Communication(share_ratio=0.4, source="nccl plugin"))]
    )

    line = "communication         40.0% (nccl plugin)"
    assert f"{line} in the mean over ranks: 16.0% moves data, 24.0% waits for other ranks\n" in reported
    assert f"{line}\n" in unreported


def test_evidence_of_the_bottleneck_is_not_reported_again_below_it(summary):
    silent = Finding(kind=Kind.MISSING_TELEMETRY, confidence=0.9, evidence=["Rank 3 says nothing."])
    memory = Finding(
        kind=Kind.MEMORY_CAPACITY, confidence=0.8, evidence=["Rank 3 says nothing.", "Memory is full."]
    )
    unknown = Finding(kind=Kind.UNKNOWN, confidence=0.0, evidence=["No timer.", "Rank 3 says nothing."])
    found = dataclasses.replace(summary, findings=[unknown, silent, memory])

    for text in (in_words([found]), "\n".join(findings_in_words([found]))):
        assert text.count("Rank 3 says nothing.") == 2
        assert text.count("Memory is full.") == 1
    assert "missing telemetry" not in in_words([found])
    report = to_markdown(report_of_summary(found, "summary.json"))
    assert "Missing telemetry" not in report
    assert "Memory is full." in report


def kernels(group, share, **changes):
    return Dimension(group=group, share_ratio=share, source="nccl plugin", **changes)


def numbers(summary, **changes):
    """The lines of a summary's numbers, by name; those without one belong to the line above."""
    reported: dict[str, list[str]] = {}
    name = ""
    for line in in_words([dataclasses.replace(summary, **changes)]).splitlines():
        if line.startswith("    "):
            name = line[4:25].strip() or name
            reported.setdefault(name, []).append(line[26:])
    return reported


def test_a_total_by_timers_says_which_dimensions_it_does_not_count(summary):
    stages = Dimension(group="pp", share_ratio=0.24, exposed_ratio=0.24, exposed_source="timers", source="t")
    timed = Communication(share_ratio=0.006, source="timers: all-grads-sync", dimensions=[stages])

    reported = numbers(summary, communication=timed)

    assert reported["communication"] == ["0.6% (timers: all-grads-sync), not counting pp"]
    assert reported["by dimension"] == ["pp 24.0%, exposed 24.0% (timers)"]
    # A capture counts all that communicates.
    captured = dataclasses.replace(timed, share_ratio=0.3, source="capture c-1")
    assert numbers(summary, communication=captured)["communication"] == ["30.0% (capture c-1)"]


def test_dimensions_that_communicate_at_once_are_reported_with_what_they_take_together(summary):
    why = {"missing": "no capture was analyzed"}
    seen = Communication(
        share_ratio=0.3,
        source="nccl plugin",
        dimensions=[kernels("pp", 0.2, **why), kernels("dp", 0.18, **why)],
    )

    reported = numbers(summary, communication=seen)

    assert reported["communication"] == ["30.0% (nccl plugin)"]
    assert reported["by dimension"] == [
        "pp 20.0%, dp 18.0%; exposed unknown (no capture was analyzed)",
        "together 30.0%: they overlap",
    ]


def test_each_dimension_shows_why_its_exposed_part_is_unknown(summary):
    dimensions = [
        kernels("dp", 0.2, exposed_ratio=0.1, exposed_source="timers"),
        kernels("tp", 0.1, missing="no capture was analyzed"),
    ]
    seen = Communication(share_ratio=0.3, source="nccl plugin", dimensions=dimensions)

    assert numbers(summary, communication=seen)["by dimension"] == [
        "dp 20.0%, exposed 10.0% (timers)",
        "tp 10.0%, exposed unknown (no capture was analyzed)",
    ]


def test_a_stall_by_waiting_is_of_the_time_and_one_by_timers_of_the_schedule(summary):
    parallel = dataclasses.replace(summary.parallel, pp=2)
    stall = Pipeline(bubble_theory_ratio=0.2, stall_ratio=0.3, source=SOURCE_WAITING)
    unknown = Pipeline(bubble_theory_ratio=0.2)

    for pipeline, said in (
        (stall, f"30.0% of the time; theory expects 20.0% ({SOURCE_WAITING})"),
        (
            dataclasses.replace(stall, source="timers"),
            "30.0% of the schedule; theory expects 20.0% (timers)",
        ),
        (unknown, "unknown; theory expects 20.0% of the schedule"),
    ):
        assert numbers(summary, parallel=parallel, pipeline=pipeline)["pipeline stall"] == [said]


def test_without_a_gpu_flops_are_reported_per_rank(summary):
    assert "model FLOP/s per GPU" in numbers(summary)
    assert "model FLOP/s per rank" in numbers(summary, gpus=())


def test_what_the_job_complained_of_stands_below_the_numbers_and_beside_the_diagnosis(summary):
    trouble = ErrorSummary(
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


def test_why_mfu_is_unknown_is_said(summary):
    unknown = dataclasses.replace(
        summary.efficiency, mfu_ratio=None, mfu_upper_ratio=None, mfu_missing="No GPU is known."
    )
    text = in_words([dataclasses.replace(summary, efficiency=unknown)])
    assert "MFU                   unknown. No GPU is known.\n" in text
    bounded = dataclasses.replace(unknown, mfu_upper_ratio=0.5)
    text = in_words([dataclasses.replace(summary, efficiency=bounded)])
    assert "MFU                   unknown; at most 50.0% by tensor core activity. No GPU is known.\n" in text


@pytest.mark.parametrize(
    ("source", "words"),
    [("shape", ""), ("config", "; model by its config.json"), ("log", "; FLOP/s of the log")],
)
def test_what_mfu_rests_on_is_said(summary, source, words):
    resting = dataclasses.replace(summary.efficiency, mfu_source=source)
    text = in_words([dataclasses.replace(summary, efficiency=resting)])
    assert f"(convention {summary.efficiency.flops_convention}{words}), tier" in text


def test_alerts_of_a_job_stand_below_it_oldest_first(summary):
    alerts = [
        alert(name="Later", fired_at_unix_s=20.0, first_step=None, annotations={}),
        alert(captures=["slow-1", "slow-2"]),
        alert(name="Elsewhere", job="other"),
        alert(name="Nobody", job=None),
    ]
    text = in_words([summary], alerts)
    assert "- Slow at step 7: it is slow. Captures: slow-1, slow-2.\n- Later.\n" in text
    assert "Elsewhere" not in text
    assert text.rstrip().endswith("Alerts without a job:\n- Nobody at step 7: it is slow.")


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
    assert f"No alerts fired.\n\nCaptures:\n{said}" in text


def test_a_capture_of_no_job_that_is_reported_stands_by_itself(summary):
    text = in_words([summary], captures=[capture(job="n1/127.0.0.1:30000")])
    assert text.endswith("\n\nOther captures:\n- slow-1 (nsys, alert Slow): done.\n")


def test_a_job_without_alerts_says_so(summary):
    assert "No alerts fired." in in_words([summary])


def test_without_any_job_it_says_what_that_means():
    assert in_words([], notes=["the log was empty."]) == f"{NO_JOB}\n\nNote: the log was empty.\n"


def test_a_name_cannot_control_the_terminal(summary):
    named = dataclasses.replace(summary, name="llama\x1b[31m\r\x9b2J\nred")

    for text in (in_words([named]), *findings_in_words([named])):
        assert all(sign == "\n" or sign.isprintable() for sign in text)


@pytest.mark.parametrize("width", [0, 1, 19])
def test_a_terminal_without_a_size_gets_readable_lines(width):
    assert wrapped("a sentence of several words", width) == "a sentence of\n  several words\n"


def test_what_is_said_of_a_number_is_below_the_number():
    line = "    step time   681.6 ms (median), p95 726.5 ms"
    assert wrapped(line, 40) == "    step time   681.6 ms (median), p95\n                726.5 ms\n"
    assert wrapped(line, 30) == "    step time   681.6 ms\n      (median), p95 726.5 ms\n"


def _with_past(summary):
    fault = {
        "began_unix_s": 1_764_000_010.0,
        "seen_unix_s": 1_764_000_130.0,
        "first_step": 310,
        "last_step": 412,
    }
    faults = [
        FaultPeriod(
            kind=Kind.STRAGGLER,
            culprits=(Culprit(kind="rank", id=rank),),
            gain_ratio=0.172,
            lost_s=20.0 - rank,
            **fault,
        )
        for rank in range(14)
    ]
    return dataclasses.replace(summary, past=JobPast(restarts_count=2, restarts_lost_s=200.0, faults=faults))


def test_the_end_of_a_run_says_how_often_it_started_again_and_which_faults_it_had(summary):
    text = in_words([_with_past(summary)])
    assert (
        "\nThe job started again 2 times, which cost 200.0 s, steps that were made twice included.\n" in text
    )
    assert (
        "\nFaults while it ran:\n- straggler: rank 0 (2025-11-24 16:00:10 UTC to 2025-11-24 16:02:10 UTC,"
        " 120.0 s, steps 310 to 412): cost 17.2% of a step, 20.0 s in all.\n"
    ) in text
    # Of many those that cost most are shown.
    assert "rank 11 (2025" in text
    assert "rank 12 (2025" not in text
    assert "- 2 more, which cost less, are in the summary's `past`.\n" in text
    assert "Faults while it ran" not in in_words([dataclasses.replace(summary, past=JobPast())])


def test_a_report_has_a_table_of_earlier_faults_and_says_how_often_the_job_started_again(summary):
    text = to_markdown(report_of_summary(_with_past(summary), "here"))
    assert "The job started again 2 times, which cost 200.0 s" in text
    assert "Faults while the job ran" in text
    assert "straggler: rank 13" in text
    assert "17.2% of a step, 7000.0 ms in all" in text


def test_a_recorded_job_that_was_slow_says_so_after_its_end(summary):
    (fault,) = summary.past.faults
    assert (fault.kind, fault.lasts) == (Kind.STRAGGLER, False)
    assert [culprit.id for culprit in fault.culprits] == [2]
    assert summary.past.restarts_count == 0


def test_an_exception_whose_text_is_below_it_ends_without_a_colon(summary):
    trouble = ErrorSummary(
        kind=EventKind.LOG_ERROR,
        message="ChildFailedError:",
        count=1,
        step=20,
        first_unix_s=1.0,
        last_unix_s=1.0,
    )
    text = in_words([dataclasses.replace(summary, troubles=[trouble])])
    assert "- ChildFailedError (after step 20)\n" in text


def test_a_disk_without_room_keeps_no_half_of_a_summary(summary, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            save_results(tmp_path, [summary], "text")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    save_results(tmp_path, [summary], "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "summary.md"]
