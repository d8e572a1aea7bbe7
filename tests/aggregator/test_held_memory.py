"""What the aggregator holds of a job stops growing, by counts of items and bytes of arrays."""

import numpy as np
import pytest
from aggregator.support import START_S, aggregator, gpus, place, step

from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.jobs.step_tables import PhaseRows, StepRows
from perfd.aggregator.limits import Limits
from perfd.clock import VirtualClock
from perfd.config import RulesConfig
from perfd.model import (
    Batch,
    CollectiveProgress,
    CollectiveTimes,
    Event,
    EventKind,
    Hello,
    JobDescription,
    MemoryReport,
    ParallelLayout,
    PhaseTime,
    StepPhases,
    TimingSource,
)
from tests.support.held_memory import held_by

LIMITS = Limits(
    steps_per_job=64,
    events_per_job=16,
    gpu_history_rows=32,
    gpu_history_s=64.0,
    operations_per_communicator=64,
    fewest_operations_per_communicator=32,
)
RANKS = 2


def timers(number):
    shared = PhaseTime(min_s=0.1, max_s=0.2)
    return StepPhases(
        job="llm", step=number, phases={"forward": shared, "backward": PhaseTime(by_rank={0: 0.1, 1: 0.2})}
    )


def operations(rank, number, unix_ns):
    """Two all-reduces of a step."""
    return CollectiveTimes(
        job="llm",
        rank=rank,
        communicator="c",
        communicator_rank=rank,
        communicator_size=RANKS,
        operation="AllReduce",
        timing=TimingSource.GPU,
        start_unix_ns=unix_ns - 10**9,
        end_unix_ns=unix_ns,
        count=2,
        total_bytes=2e6,
        total_s=0.02,
        min_s=0.01,
        max_s=0.01,
        sequences=[2 * number, 2 * number + 1],
        durations_ns=[10**7] * 2,
        sizes_bytes=[10**6] * 2,
    )


def records(number, unix_ns):
    """What two ranks of a job report of a step."""
    yield step(number, time_s=unix_ns / 1e9, loss=3.0, tokens_per_s=1e4)
    yield timers(number)
    yield Event(kind=EventKind.CHECKPOINT, time_unix_ns=unix_ns, message=f"checkpoint {number}", job="llm")
    yield gpus(unix_ns / 1e9, count=RANKS, gpu_utilization_ratio=0.5, power_w=300.0)
    for rank in range(RANKS):
        yield operations(rank, number, unix_ns)
        yield CollectiveProgress(
            job="llm",
            rank=rank,
            communicator="c",
            completed=number,
            time_unix_ns=unix_ns,
            source="nccl_plugin",
        )
        yield MemoryReport(job="llm", rank=rank, step=number, allocated_bytes=1e9)


def test_a_job_that_goes_on_holds_no_more():
    clock = VirtualClock(round(START_S * 1e9))
    with aggregator(clock, limits=LIMITS, rules=RulesConfig(builtin=True)) as running:
        ingest = Ingest(running.state, clock, None, running._captures)
        hello = Hello(
            agent_id="a", node="n0", perfd_version="", sent_unix_ns=clock.unix_ns(), first_sequence=1
        )
        agent, _ = ingest.hello(hello, 1)
        assert agent is not None
        layout = ParallelLayout(world_size=RANKS)
        first = [
            JobDescription(job="llm", framework="x", parallel=layout),
            *(place(n, n) for n in range(RANKS)),
        ]
        most = []
        for quarter in range(4):
            seen = []
            for number in range(1 + 64 * quarter, 65 + 64 * quarter):
                # More virtual time than rules look back over, so that their readings are as many as can be.
                clock.advance(40.0)
                now_ns = clock.unix_ns()
                batch = [*first, *records(number, now_ns)]
                ingest.batch(agent, Batch(sequence=number, sent_unix_ns=now_ns, records=batch), lambda: None)
                if number % 4 == 0:
                    running.tick()
                if number % 8 == 0:
                    seen.append(held_by(running))
            most.append((max(held.items for held in seen), max(held.array_bytes for held in seen)))
        job = running.state.fleet.jobs["llm"]
        assert (job.steps.last_step, len(job.steps), len(job.phases)) == (256, 64, 64)
        assert not running.state.counters.failed_ticks
    assert most[3] <= most[2], most
    assert most[2][0] > 1_000


@pytest.mark.parametrize("count", [6_000, 12_000])
def test_the_steps_that_are_kept_of_a_job_take_as_much_whatever_came_before(count):
    limits = Limits(steps_per_job=5_000)
    steps = StepRows(limits.steps_per_job)
    phases = PhaseRows(rows=limits.steps_per_job, names=2, ranks=1, cells=limits.phase_cells_per_job)
    line, timer = step(0), PhaseTime(min_s=0.1, max_s=0.2)
    for number in range(count):
        steps.put(type(line)(job="llm", step=number, step_time_s=1.0), 0.0)
        phases.put(StepPhases(job="llm", step=number, phases={"forward": timer}))
    # Step, steps covered, warm-up and seven numbers of each line.
    assert held_by(steps).array_bytes == limits.steps_per_job * (8 + 8 + 1 + 8 * 8)
    assert limits.steps_per_job * 7 // 8 <= len(steps) <= limits.steps_per_job
    assert limits.steps_per_job * 7 // 8 <= len(phases) <= limits.steps_per_job
    assert held_by(phases).items <= 2 * limits.steps_per_job + 16


def test_what_is_held_is_counted_once_and_with_its_spare_room():
    array = np.zeros(100)
    held = held_by({"a": [1, 2, array, array[:3]]}, array)
    assert held.array_bytes == 800
    assert held.items == 5
