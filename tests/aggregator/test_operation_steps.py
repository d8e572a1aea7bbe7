"""Steps by the NCCL operations of a rank, second by second, as the agent reports them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.jobs import JobState, RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations import OperationSteps
from perfd.aggregator.state.fleet import Fleet
from perfd.model import CollectiveTimes, EventKind, RankPlacement, StepSource, TimingSource, TrainingStep

SECOND_NS = 10**9
MB = 1 << 20


Operations = Sequence[tuple[str, str, int]]
"""Communicator, operation and size of each, in order."""


class Rank:
    """A rank that does the same operations in every step, evenly; a step takes `step_s`."""

    def __init__(self, step: Operations, step_s: float, before: Sequence[int] = ()) -> None:
        self._step = step
        self._step_s = step_s
        self._done = {("world", "AllReduce"): list(before)}
        self._reported: dict[tuple[str, str], int] = {}
        self._place = 0
        self._clock_s = 0.0

    def second(self, number: int, step_s: float | None = None) -> Iterator[CollectiveTimes]:
        """The records of one second."""
        per_operation_s = (step_s or self._step_s) / len(self._step)
        while self._clock_s < number + 1:
            communicator, operation, size = self._step[self._place % len(self._step)]
            self._done.setdefault((communicator, operation), []).append(size)
            self._place += 1
            self._clock_s += per_operation_s
        for (communicator, operation), sizes in self._done.items():
            first = self._reported.get((communicator, operation), 0)
            if first < len(sizes):
                self._reported[communicator, operation] = len(sizes)
                yield record(communicator, operation, sizes[first:], first, number)


def record(
    communicator: str, operation: str, sizes: Sequence[int], first: int, second: int, *, rank: int = 0
) -> CollectiveTimes:
    return CollectiveTimes(
        job="job",
        rank=rank,
        communicator=communicator,
        operation=operation,
        timing=TimingSource.GPU,
        start_unix_ns=second * SECOND_NS,
        end_unix_ns=(second + 1) * SECOND_NS,
        count=len(sizes),
        total_bytes=float(sum(sizes)),
        total_s=0.1,
        min_s=0.001,
        max_s=0.01,
        sequences=range(first, first + len(sizes)),
        durations_ns=[10**6] * len(sizes),
        sizes_bytes=list(sizes),
    )


def rows(rank: Rank, seconds: int) -> list[TrainingStep]:
    steps = OperationSteps()
    return [
        row for second in range(seconds) for times in rank.second(second) for row in steps.put(times).rows
    ]


DDP = [("world", "AllReduce", size * MB) for size in (25, 26, 26, 26, 125)]
FSDP = [("world", "AllGather", size * MB) for size in (262, *[100] * 32)] + [
    ("world", "ReduceScatter", size * MB) for size in (*[100] * 16, 262)
]
NORM = [("world", "AllReduce", 8)]
TENSOR = [("tp", "AllReduce", 16 * MB)] * 96


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (DDP, "buckets of DDP"),
        ([*FSDP, *FSDP, *NORM], "FSDP, two micro-batches and the gradient norm"),
        ([*FSDP, *NORM], "FSDP without accumulation"),
        ([*TENSOR, ("dp", "AllReduce", 1300 * MB), ("dp", "AllReduce", 8)], "tensor and data parallel"),
        ([*TENSOR, ("embedding", "AllReduce", 131 * MB)], "one operation of its own communicator per step"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_steps_are_counted_and_timed(step, name):
    found = rows(Rank(step, 0.25), 60)
    assert found, name
    assert found[-1].step == pytest.approx(240, abs=14)
    assert sum(row.steps_covered for row in found[1:]) == found[-1].step - found[0].step
    for row in found:
        assert row.step_time_s == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(
    ("step", "certain"),
    [(DDP, False), (FSDP, False), ([*FSDP, *NORM], True), ([*FSDP, *FSDP, *NORM], False)],
    ids=["ddp", "fsdp", "fsdp with the norm", "fsdp with micro-batches and the norm"],
)
def test_the_source_of_steps_is_known_and_whether_they_may_be_micro_batches(step, certain):
    rank, steps = Rank(step, 0.25), OperationSteps()
    assert steps.pace is None
    reported = {}
    for second in range(30):
        for times in rank.second(second):
            reported[times.communicator, times.operation] = times.sequences[-1]
            steps.put(times)
    pace = steps.pace
    assert pace is not None
    assert pace.certain is certain
    same = [entry for entry in step if entry[:2] == (pace.communicator, pace.operation)]
    assert pace.per_step == len(same)
    newest = reported[pace.communicator, pace.operation]
    assert newest - 4 / 0.25 * pace.per_step <= pace.row_end_sequence <= newest


@pytest.mark.parametrize(("micro_batches", "per_step"), [(64, 64), (65, 1)])
def test_a_step_has_at_most_64_micro_batches(micro_batches, per_step):
    """A number that is reduced more rarely may be an evaluation's: what repeats may be a micro-batch."""
    one = [
        ("world", "AllGather", 64 * MB),
        ("world", "ReduceScatter", 32 * MB),
        ("world", "ReduceScatter", 64 * MB),
    ]
    rank, steps = Rank([*one * micro_batches, *NORM], 1.0), OperationSteps()
    for second in range(60):
        for times in rank.second(second):
            steps.put(times)
    assert steps.pace is not None
    assert not steps.pace.certain
    operations = {"AllGather": 1, "ReduceScatter": 2}
    assert steps.pace.per_step == per_step * operations[steps.pace.operation]


def test_what_the_job_did_before_it_trained_does_not_matter():
    found = rows(Rank(DDP, 0.25, before=[1800 * MB, 4, 4, 4]), 30)
    assert found[-1].step_time_s == pytest.approx(0.25, rel=0.05)


def test_a_slower_job_shows():
    rank, steps = Rank(DDP, 0.25), OperationSteps()
    found = [
        row
        for second in range(60)
        for times in rank.second(second, 0.25 if second < 30 else 0.5)
        for row in steps.put(times).rows
    ]
    assert found[2].step_time_s == pytest.approx(0.25, rel=0.05)
    assert found[-1].step_time_s == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_job_that_does_not_repeat_has_no_steps(seed):
    order = random.Random(seed)
    step = [("world", "AllReduce", order.randrange(1, 64) * MB) for _ in range(20_000)]
    assert rows(Rank(step, 1000.0), 60) == []


def test_tensor_parallelism_alone_shows_no_steps():
    assert rows(Rank(TENSOR, 0.25), 60) == []


def test_flags_that_are_passed_around_are_no_steps():
    assert rows(Rank([("world", "AllReduce", 4), *TENSOR], 0.25), 60) == []


def test_other_ranks_sends_and_records_without_operations_are_left_out():
    rank, steps = Rank(DDP, 0.25), OperationSteps()
    for second in range(60):
        for times in rank.second(second):
            steps.put(times)
            assert steps.put(record("world", "AllReduce", [1] * 50, 50 * second, second, rank=1)).rows == ()
    assert steps.put(record("world", "AllReduce", [], 0, 60)).rows == ()


@pytest.mark.parametrize(
    "garbage",
    [
        {"sequences": [2**64 - 1], "sizes_bytes": [1], "durations_ns": [1]},
        {"sequences": [7], "sizes_bytes": [2**64 - 1], "durations_ns": [2**64 - 1]},
        {"sequences": [7, 8], "sizes_bytes": [1], "durations_ns": [1, 1]},
        {
            "sequences": [9, 8],
            "sizes_bytes": [1, 1],
            "durations_ns": [1, 1],
            "start_increments_us": [2**63 - 1, 2**63 - 1],
            "queued_us": [-(2**63), 0],
        },
    ],
)
def test_numbers_of_any_size_do_no_harm(garbage):
    rank, steps = Rank(DDP, 0.25), OperationSteps()
    for second in range(20):
        for times in rank.second(second):
            steps.put(times)
            steps.put(replace(times, **garbage))


def test_a_communicator_made_anew_goes_on_after_a_pause():
    steps, found = OperationSteps(), []
    for start, name in ((0, "first"), (100, "second")):
        rank = Rank([(name, operation, size) for _, operation, size in DDP], 0.25)
        for second in range(30):
            for times in rank.second(second):
                moved = record(name, times.operation, times.sizes_bytes, times.sequences[0], start + second)
                found += [row.step for row in steps.put(moved).rows]
    assert found == sorted(set(found))
    assert found[-1] > 200


@pytest.mark.parametrize(("started_s", "attempts"), [(None, 1), (20.0, 1), (95.0, 2)])
def test_operations_of_new_processes_are_those_of_another_attempt(started_s, attempts):
    job = JobState("job", Limits(), AggregatorCounters())
    job.rank_started(0, -30.0, 0.0)
    events = []
    for start, name in ((0, "first"), (100, "second")):
        if start and started_s is not None:
            job.rank_started(0, started_s, float(start))
        rank = Rank([(name, operation, size) for _, operation, size in DDP], 0.25)
        for second in range(30):
            source = RecordSource(agent_id="a", node="n", sent_unix_s=start + second + 1.0, now_s=0.0)
            for times in rank.second(second):
                moved = record(name, times.operation, times.sizes_bytes, times.sequences[0], start + second)
                events.append(job.steps_by(moved, source))
    shown = [event for event in events if event is not None]
    assert job.attempts.number == attempts == 1 + len(shown)
    assert all(event.kind is EventKind.RESTARTED for event in shown)
    # An attempt that goes on counts the steps of the one before.
    assert job.steps.last_step > 200


@pytest.mark.parametrize(("rank_started", "at_once"), [(0, True), (1, False)])
def test_after_a_restart_operations_of_the_new_process_show_steps_at_once(rank_started, at_once):
    job = JobState("job", Limits(), AggregatorCounters())
    for rank in (0, 1):
        job.rank_started(rank, -30.0, 0.0)
    shown = []
    for start, name in ((0, "first"), (20, "second")):
        if start:
            # Known to a second: it may seem to have begun before the last step.
            job.rank_started(rank_started, 14.5, 18.0)
        rank = Rank([(name, operation, size) for _, operation, size in DDP], 0.25)
        for second in range(15):
            source = RecordSource(agent_id="a", node="n", sent_unix_s=start + second + 1.0, now_s=0.0)
            for times in rank.second(second):
                moved = record(name, times.operation, times.sizes_bytes, times.sequences[0], start + second)
                job.steps_by(moved, source)
        shown.append(job.steps.last_step)
    assert shown[0] > 40
    assert (shown[1] > shown[0] + 40) is at_once
    # While nothing of the new process repeats, operations are known to show steps all the same.
    assert job.operation_pace is not None


def test_a_log_that_shows_steps_takes_their_place():
    job = JobState("job", Limits(), AggregatorCounters())
    source = RecordSource(agent_id="a", node="n", sent_unix_s=0.0, now_s=0.0)
    rank = Rank(DDP, 0.25)
    for second in range(30):
        for times in rank.second(second):
            job.steps_by(times, source)
    assert job.step_source is StepSource.NCCL
    assert len(job.steps) > 3
    later = replace(source, sent_unix_s=31.0)
    job.step(TrainingStep(job="job", step=6, step_time_s=0.25), later)
    assert job.step_source is StepSource.NCCL
    job.step(TrainingStep(job="job", step=7, step_time_s=0.25), later)
    assert (job.step_source, len(job.steps)) == (StepSource.LOG, 1)
    for second in range(30, 60):
        for times in rank.second(second):
            job.steps_by(times, source)
    assert len(job.steps) == 1


def test_the_one_line_of_a_bar_at_the_end_does_not_take_their_place():
    fleet, _ = job_with_steps_by_operations()
    job = fleet.jobs["job"]
    before = len(job.steps)
    for node in ("a", "a"):
        fleet.apply([TrainingStep(job="job", step=156, step_time_s=0.1)], source_of(node, 31.0))
    assert (job.step_source, len(job.steps)) == (StepSource.NCCL, before)


@pytest.mark.parametrize("line_first", [True, False])
def test_in_the_batch_that_first_shows_steps_by_operations_a_line_counts_wherever_it_stands(line_first):
    fleet = Fleet(Limits(), AggregatorCounters())
    fleet.apply([RankPlacement(job="job", rank=0, pid=1)], source_of("a"))
    rank, job = Rank(DDP, 0.25), fleet.jobs["job"]
    for second in range(30):
        records = [*rank.second(second)]
        fleet.apply(records, source_of("a", second + 1.0))
        if job.step_source is StepSource.NCCL:
            break
    shown_s = second + 1.0
    again, rank = Fleet(Limits(), AggregatorCounters()), Rank(DDP, 0.25)
    again.apply([RankPlacement(job="job", rank=0, pid=1)], source_of("a"))
    for second in range(40):
        records = [*rank.second(second)]
        if second + 1.0 == shown_s:
            line = TrainingStep(job="job", step=1, step_time_s=4.0, time_unix_ns=round(second * SECOND_NS))
            records = [line, *records] if line_first else [*records, line]
        again.apply(records, source_of("a", second + 1.0))
    assert (again.jobs["job"].step_source, len(again.jobs["job"].steps)) == (StepSource.LOG, 1)


def job_with_steps_by_operations() -> tuple[Fleet, AuditLog]:
    audit = AuditLog()
    fleet = Fleet(Limits(), AggregatorCounters(), audit=audit)
    fleet.apply([RankPlacement(job="job", rank=0, pid=1)], source_of("a"))
    rank = Rank(DDP, 0.25)
    for second in range(30):
        fleet.apply(rank.second(second), source_of("a", second + 1.0))
    return fleet, audit


def source_of(node: str, now_s: float = 0.0) -> RecordSource:
    return RecordSource(agent_id=node, node=node, sent_unix_s=now_s, now_s=now_s)


def test_a_line_of_a_node_of_another_job_does_not_take_their_place():
    fleet, audit = job_with_steps_by_operations()
    job = fleet.jobs["job"]
    before = len(job.steps)
    assert before > 3
    assert fleet.apply([TrainingStep(job="job", step=7, step_time_s=9.0)], source_of("mallory")) == []
    assert (job.step_source, len(job.steps)) == (StepSource.NCCL, before)
    assert audit.counts()[Refusal.JOB_OWNER] == 1


def test_operations_of_a_node_of_another_job_show_no_steps():
    fleet = Fleet(Limits(), AggregatorCounters())
    fleet.apply([RankPlacement(job="job", rank=0, pid=1)], source_of("a"))
    rank = Rank(DDP, 0.25)
    for second in range(30):
        fleet.apply(rank.second(second), source_of("mallory"))
    assert fleet.jobs["job"].step_source is None


@pytest.mark.parametrize(
    ("shown", "before", "source"),
    [
        ({}, StepSource.ARRIVAL, StepSource.NCCL),
        ({"step_time_s": 0.25}, StepSource.LOG, StepSource.LOG),
        ({"tokens_per_s": 9.0}, StepSource.LOG, StepSource.LOG),
    ],
    ids=["nothing", "times", "rates"],
)
def test_lines_that_show_no_pace_leave_it_to_the_operations(shown, before, source):
    job = JobState("job", Limits(), AggregatorCounters())
    sender = RecordSource(agent_id="a", node="n", sent_unix_s=0.0, now_s=0.0)
    job.step(TrainingStep(job="job", step=1, **shown), sender)
    assert job.step_source is before
    rank = Rank(DDP, 0.25)
    for second in range(30):
        for times in rank.second(second):
            job.steps_by(times, sender)
    assert job.step_source is source
    assert (job.operation_pace is not None) is (source is StepSource.NCCL)
