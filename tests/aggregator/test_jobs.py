"""One job: restarts, several sources of one log, descriptions, silence."""

import dataclasses

import pytest
from aggregator.support import source, step

from perfd.aggregator.jobs import JobState
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.model import (
    Event,
    EventKind,
    JobDescription,
    JobOutcome,
    LogProgress,
    MemoryReport,
    ModelShape,
    ParallelLayout,
)


@pytest.fixture
def job():
    return JobState(
        "llm", Limits(memory_reports_per_job=2, streams_per_job=2, nodes_per_job=2), AggregatorCounters()
    )


def report(job, *numbers, agent="a", **fields):
    """Events that some lines gave."""
    return [job.step(step(number, **fields), source(agent=agent)) for number in numbers]


def describe(job, **fields):
    return job.describe(JobDescription(job="llm", framework="megatron-lm", **fields), source())


def layout(**sizes):
    return ParallelLayout(**sizes)


def test_a_job_that_goes_back_to_a_checkpoint_drops_what_it_repeats(job):
    events = report(job, 1, 2, 3, 4, 5)
    (event,) = [job.step(step(3, step_time_s=9.0), source())]
    assert events == [None] * 5
    assert event.kind is EventKind.RESTARTED
    assert event.values["lost_steps"] == 3.0
    assert job.attempts.number == 2
    assert job.steps.table().step.tolist() == [1, 2, 3]
    assert job.steps.table().step_time_s.tolist() == [1.0, 1.0, 9.0]


def test_versions_of_nodes_that_differ_are_joined(job):
    def software(node, **versions):
        job.touch(source(node=node))
        job.describe(JobDescription(job="llm", framework="", software=versions), source(node=node))
        return job.description.software

    assert software("a", NCCL="2.20.5", CUDA="12.4") == {"CUDA": "12.4", "NCCL": "2.20.5"}
    assert software("b", NCCL="2.21.5", CUDA="12.4") == {"CUDA": "12.4", "NCCL": "2.20.5, 2.21.5"}
    assert software("a", NCCL="2.21.5") == {"CUDA": "12.4", "NCCL": "2.21.5"}
    # Other descriptions keep it, and nodes that are not the job's add nothing.
    describe(job, train_steps=7)
    job.describe(JobDescription(job="llm", framework="", software={"NCCL": "1"}), source(node="stranger"))
    assert (job.description.train_steps, job.description.software["NCCL"]) == (7, "2.21.5")


def test_versions_of_another_start_are_not_joined_with_those_before(job):
    for node, version in (("a", "2.20.5"), ("b", "2.21.5")):
        job.touch(source(node=node))
        versions = JobDescription(job="llm", framework="", software={"NCCL": version})
        job.describe(versions, source(node=node))
    describe(job, parallel=layout(tp=2))
    assert describe(job, parallel=layout(tp=4)) is not None
    job.describe(versions, source(node="b"))
    assert job.description.software == {"NCCL": "2.21.5"}


def test_a_second_agent_that_reads_the_same_log_later_is_no_restart(job):
    report(job, 1, 2, 3, agent="a")
    assert report(job, 1, 2, 3, agent="b") == [None] * 3
    assert job.attempts.number == 1


def test_a_restart_that_two_agents_see_is_one_restart(job):
    for agent in ("a", "b"):
        report(job, 1, 2, 3, agent=agent)
    events = report(job, 1, agent="a", step_time_s=2.0) + report(job, 2, agent="a", step_time_s=2.0)
    events += report(job, 1, agent="b", step_time_s=2.0) + report(job, 2, agent="b", step_time_s=2.0)
    assert sum(event is not None for event in events) == 1
    assert job.attempts.number == 2
    assert job.steps.table().step.tolist() == [1, 2]


def test_a_restart_that_another_agent_reports_later_and_slightly_differently_is_still_one(job):
    for agent in ("a", "b"):
        report(job, 1, 2, 3, agent=agent)
    report(job, 1, 2, 3, agent="a", step_time_s=2.0)
    report(job, 1, 2, 3, agent="b", step_time_s=2.1)
    assert job.attempts.number == 2
    assert job.steps.table().step_time_s.tolist() == [2.0, 2.0, 2.0]


def test_a_line_that_is_read_again_is_no_restart(job):
    report(job, 1, 2, 3, loss=0.5)
    assert report(job, 1, loss=0.5) == [None]
    assert job.attempts.number == 1


def test_a_job_that_repeats_its_lines_exactly_after_its_end_was_started_again(job):
    report(job, 1, 2, 3, time_s=100.0, loss=0.5)
    started, ended = (
        Event(kind=kind, time_unix_ns=round(time_s * 1e9), message="", job="llm")
        for kind, time_s in ((EventKind.JOB_STARTED, 105.0), (EventKind.JOB_ENDED, 100.0))
    )
    job.event(ended)
    # Kubernetes rounds the time of the end down; an agent that starts anew reads all lines once more.
    assert report(job, 1, 2, 3, time_s=102.0, loss=0.5) == [None] * 3
    job.event(started)
    first, *others = report(job, 1, 2, 3, time_s=102.1, loss=0.5)
    assert (first.kind, first.values["lost_steps"]) == (EventKind.RESTARTED, 3.0)
    assert others == [None] * 2
    # A line that is read again is no restart then, either.
    assert report(job, 1, time_s=102.1, loss=0.5) == [None]
    assert job.attempts.number == 2
    assert job.steps.table().step.tolist() == [1, 2, 3]


def restart(job, time_s, **values):
    job.event(
        Event(
            kind=EventKind.RESTARTED, time_unix_ns=round(time_s * 1e9), message="", job="llm", values=values
        )
    )


def test_a_new_process_that_repeats_the_lines_exactly_is_another_attempt(job):
    report(job, 1, 2, 3, time_s=100.0, loss=0.5)
    restart(job, 102.5, new_process=1.0)
    # Lines that other agents read late are those of the process before.
    assert report(job, 3, agent="b", time_s=100.5, loss=0.5) == [None]
    # It prints its time in whole seconds.
    first, *others = report(job, 1, 2, 3, time_s=102.0, loss=0.5)
    assert (first.kind, first.values["lost_steps"]) == (EventKind.RESTARTED, 3.0)
    assert others == [None] * 2
    assert job.attempts.number == 2
    # Another node's agent is late with its own; its process began before the newest step.
    restart(job, 101.9, new_process=1.0)
    assert report(job, 1, 2, 3, agent="b", time_s=102.5, loss=0.5) == [None] * 3
    assert job.attempts.number == 2


@pytest.mark.parametrize(
    ("outcome", "pause_s", "begins"),
    [
        (JobOutcome.FAILED, 10.0, 50.0),
        (JobOutcome.PREEMPTED, 10.0, 50.0),
        (JobOutcome.COMPLETED, 10.0, 110.0),
        (JobOutcome.FAILED, 7200.0, 7300.0),
    ],
)
def test_the_time_between_attempts_is_the_jobs_and_that_between_jobs_of_one_name_is_not(
    job, outcome, pause_s, begins
):
    def event(kind, time_s, **more):
        job.event(Event(kind=kind, time_unix_ns=round(time_s * 1e9), message="", job="llm", **more))

    event(EventKind.JOB_STARTED, 50.0)
    report(job, 1, 2, 3, time_s=99.0, loss=0.5)
    event(EventKind.JOB_ENDED, 100.0, outcome=outcome)
    event(EventKind.JOB_STARTED, 100.0 + pause_s)
    assert job.attempts.started_unix_s == begins


@pytest.mark.parametrize("reports_before_steps", [0, 1, 2])
def test_a_start_counts_the_same_whether_it_is_reported_before_or_after_the_first_steps(
    job, reports_before_steps
):
    starts = [
        Event(kind=EventKind.JOB_STARTED, time_unix_ns=s * 10**9, message="", job="llm") for s in (50, 52)
    ]
    for event in starts[:reports_before_steps]:
        job.event(event)
    report(job, 1, 2, 3, time_s=60.0, loss=0.5)
    for event in starts[reports_before_steps:]:
        job.event(event)
    expected = 52.0 if reports_before_steps else 50.0
    assert job.attempts.started_unix_s == expected
    assert job.attempts.began_unix_s == expected


def test_a_late_report_of_a_start_does_not_hide_that_the_job_began_before(job):
    job.restore(attempt=2, started_unix_s=10.0, description=None)
    report(job, 7, 8, time_s=60.0, loss=0.5)
    job.event(Event(kind=EventKind.JOB_STARTED, time_unix_ns=50 * 10**9, message="", job="llm"))
    assert job.attempts.started_unix_s == 10.0


def test_a_process_that_replaces_one_on_a_lost_node_is_another_attempt(job):
    report(job, 1, 2, 3, agent="a", time_s=100.0, loss=0.5)
    # The lost node has said nothing for less than a minute.
    job.event(
        Event(
            kind=EventKind.JOB_STARTED,
            time_unix_ns=150 * 10**9,
            message="",
            job="llm",
            values={"new_process": 1.0},
        )
    )
    first, *_ = report(job, 1, 2, 3, 4, agent="b", time_s=152.0, loss=0.5)
    assert (first.kind, first.values["lost_steps"]) == (EventKind.RESTARTED, 3.0)
    assert job.attempts.number == 2
    assert job.steps.table().step.tolist() == [1, 2, 3, 4]


def test_a_restart_that_shows_no_new_process_repeats_nothing(job):
    report(job, 1, 2, 3, time_s=100.0, loss=0.5)
    restart(job, 102.5)
    assert report(job, 1, 2, 3, time_s=103.0, loss=0.5) == [None] * 3
    assert job.attempts.number == 1


@pytest.mark.parametrize(
    ("outcomes", "ended"),
    [
        ((JobOutcome.FAILED, JobOutcome.CANCELLED), JobOutcome.FAILED),
        ((JobOutcome.CANCELLED, JobOutcome.SIGNAL), JobOutcome.SIGNAL),
        ((JobOutcome.COMPLETED, JobOutcome.CANCELLED), JobOutcome.CANCELLED),
        ((JobOutcome.CANCELLED, JobOutcome.CANCELLED), JobOutcome.CANCELLED),
    ],
)
def test_pods_deleted_after_another_one_failed_do_not_cancel_the_job(job, outcomes, ended):
    report(job, 1)
    for time_s, outcome in enumerate(outcomes, 100):
        deleted = {"deleted": 1.0} if outcome is JobOutcome.CANCELLED else {}
        kind = EventKind.JOB_ENDED
        job.event(
            Event(
                kind=kind, time_unix_ns=time_s * 10**9, message="", job="llm", values=deleted, outcome=outcome
            )
        )
    assert job.lifetime.end.outcome is ended


def test_lines_of_a_late_batch_are_no_restart(job):
    report(job, 1, 4)
    assert job.step(step(2), source(late=True)) is None
    assert job.steps.table().step.tolist() == [1, 2, 4]


def test_what_a_job_says_later_wins_where_it_says_something(job):
    describe(job, parallel=layout(world_size=8, tp=2), precision="bf16", arguments={"a": "1"})
    describe(job, parallel=layout(pp=4), train_steps=100, arguments={"b": "2"})
    reported = job.description
    assert reported.parallel == layout(world_size=8, tp=2, pp=4)
    assert (reported.precision, reported.train_steps) == ("bf16", 100)
    assert reported.arguments == {"a": "1", "b": "2"}
    assert job.attempts.number == 1


def test_another_layout_is_another_start_that_keeps_nothing_of_the_old_one(job):
    describe(job, parallel=layout(tp=2), precision="bf16")
    report(job, 1, 2)
    event = describe(job, parallel=layout(tp=4))
    assert event.kind is EventKind.RESTARTED
    assert job.attempts.number == 2
    assert len(job.steps) == 0
    assert job.description.precision is None


def test_a_restart_after_a_change_of_layout_is_noticed(job):
    describe(job, parallel=layout(tp=2))
    report(job, 1, 2)
    describe(job, parallel=layout(tp=4))
    report(job, 1, 2, 3)
    (event,) = report(job, 1, step_time_s=7.0)
    assert event.kind is EventKind.RESTARTED
    assert job.attempts.number == 3


def test_more_about_the_same_model_is_no_other_start(job):
    shape = ModelShape(
        layers=2,
        hidden_size=8,
        ffn_size=32,
        attention_heads=2,
        kv_heads=2,
        head_size=4,
        sequence_length=16,
    )
    describe(job, model=shape)
    assert describe(job, model=dataclasses.replace(shape, vocab_size=100)) is None
    assert job.description.model.vocab_size == 100


def test_the_end_of_a_job_is_what_it_said_and_a_new_start_takes_it_back(job):
    job.event(Event(kind=EventKind.JOB_ENDED, time_unix_ns=5 * 10**9, message=""))
    assert job.ended
    job.event(Event(kind=EventKind.JOB_STARTED, time_unix_ns=9 * 10**9, message=""))
    assert (job.ended, job.attempts.started_unix_s) == (False, 9.0)


def progress(stream="log", last_s=None, lines=1):
    return LogProgress(
        job="llm",
        stream=stream,
        lines=lines,
        read_bytes=1,
        unrecognized_lines=0,
        last_line_unix_ns=None if last_s is None else round(last_s * 1e9),
    )


def test_silence_is_measured_on_one_clock_at_a_time(job):
    reported = source(now_s=100.0)
    # The agent's clock is a day off, and said 7 s ago that the newest line was 3 s old.
    skewed = dataclasses.replace(reported, sent_unix_s=reported.sent_unix_s - 86_400)
    job.log_progress(progress(last_s=skewed.sent_unix_s - 3.0), skewed)
    assert job.log_silent_s(107.0) == pytest.approx(10.0)


def test_a_job_with_several_logs_is_as_silent_as_the_liveliest(job):
    now = source(now_s=10.0)
    job.log_progress(progress("a", now.sent_unix_s - 60), now)
    job.log_progress(progress("b", now.sent_unix_s - 1), now)
    assert job.log_silent_s(10.0) == pytest.approx(1.0)


def test_a_job_that_ended_or_has_no_log_is_not_silent(job):
    assert job.log_silent_s(5.0) is None
    job.log_progress(progress(last_s=source().sent_unix_s), source())
    job.event(Event(kind=EventKind.JOB_ENDED, time_unix_ns=1, message=""))
    assert job.log_silent_s(5.0) is None


def test_ranks_streams_and_nodes_beyond_the_bounds_are_counted():
    counters = AggregatorCounters()
    job = JobState("llm", Limits(memory_reports_per_job=1, streams_per_job=1, nodes_per_job=1), counters)
    for rank in range(3):
        job.memory_report(MemoryReport(job="llm", step=1, rank=rank), source())
        job.log_progress(progress(f"log{rank}"), source())
        job.touch(source(node=f"n{rank}"))
    assert len(job.memory) == len(job.logs) == len(job.nodes) == 1
    assert counters.rejected == {"memory_reports_per_job": 2, "streams_per_job": 2, "nodes_per_job": 2}
