"""What ranks lose is the same all at once as rank by rank and step by step, however much is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.collectives.late_rank_cost import LONG, NEEDED_AT_ONCE, RECENT, LateRankLosses
from perfd.analysis.collectives.newly_slow_rank import EARLIER, NEWEST
from perfd.analysis.collectives.step_losses import AnalysisWindow, StepPeriod, StepShape
from perfd.analysis.data.job_data import Bools, Floats
from perfd.analysis.operations.communicator_waits import MATCHED_OPERATIONS, CommunicatorBatch, stacked
from perfd.model import ParallelLayout
from tests.support.nccl_records import CollectiveTable, stacks_of

WINDOWS = (RECENT, LONG, EARLIER, NEWEST)


@dataclass(frozen=True)
class Job:
    """What is judged of a made one."""

    world: int
    step_s: float | None
    judged: list[tuple[CommunicatorBatch, Bools]]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    tensor, stages, data = draw(st.tuples(*map(st.sampled_from, ([1, 2, 3], [1, 2], [1, 2, 5, 18]))))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    step_s = draw(st.sampled_from([None, 0.5, 2.0]))
    absent = draw(st.sampled_from([0.0, 0.0, 0.03, 0.4]))
    grid = np.arange(tensor * stages * data).reshape(stages, data, tensor)
    kinds = [
        ("AllGather", grid.reshape(-1, tensor)),
        ("AllReduce", grid.transpose(0, 2, 1).reshape(-1, data)),
        ("SendRecv", np.stack([grid[:-1].ravel(), grid[1:].ravel()], axis=1)),
        ("AllReduce", grid.reshape(1, -1)[: draw(st.integers(0, 1))]),
    ]
    tables: list[CollectiveTable] = []
    for operation, groups in kinds:
        # Those of a kind do alike, but for a few.
        per_step, steps = random.integers(1, 4), random.integers(4, 32)
        keep, before = random.choice([1, 4]), random.choice([0, 1000])
        for ranks in groups:
            held = int(per_step * (steps if random.random() < 0.9 else random.integers(1, 32)))
            # In whole milliseconds several are the last together.
            durations_s = random.integers(1, 9, (held, len(ranks))) / 1000
            durations_s[random.random(durations_s.shape) < absent] = np.nan
            tables.append(
                CollectiveTable(
                    communicator=f"{operation}{len(tables)}",
                    operation=operation,
                    ranks=ranks.tolist(),
                    sequence=before + keep * np.arange(held),
                    durations_s=durations_s,
                    size_bytes=np.resize(np.arange(1.0, per_step + 1), held),
                    kernel_ratio=np.full(len(ranks), 0.3),
                    operations_per_s=keep * per_step / (step_s or 0.3),
                )
            )
    layout = ParallelLayout(world_size=grid.size, tp=tensor, cp=1, pp=stages, dp=data)
    stacks = stacked(stacks_of(tables), layout)
    judged = [(stack, random.random(len(stack.ranks)) < 0.95) for stack in stacks]
    return Job(world=grid.size, step_s=step_s, judged=judged)


def plainly(job: Job, window: AnalysisWindow) -> Floats:
    """(4, world, blocks): the columns of `Lateness`, number by number."""
    shapes = [
        (stack, shape)
        for stack, flags in job.judged
        for shape in StepPeriod.of(stack, flags, at_once(stack), job.step_s).shapes(window)
    ]
    blocks = max((shape.blocks for stack, shape in shapes if of_peers(stack)), default=0)
    summed, highest = np.zeros((4, job.world, blocks)), np.full((4, job.world, blocks), -np.inf)
    known = np.zeros((job.world, blocks), dtype=bool)
    for stack, shape in shapes:
        for place, row in enumerate(shape.rows.tolist()):
            in_steps = [
                of_step(waits_s, shape, float(shape.paces[place]), job.step_s)
                for waits_s in steps_of(stack, row, shape)
            ]
            in_blocks = np.array(in_steps).reshape(shape.blocks, -1, 4, len(stack.ranks[row]))
            for block, of_block in zip(range(blocks - 1, -1, -1), in_blocks[::-1], strict=False):
                steps = [step for step in of_block if not np.isnan(step).any()]
                for member, rank in enumerate(stack.ranks[row].tolist()) if steps else ():
                    values = np.mean(steps, axis=0)[:, member]
                    if not of_peers(stack):
                        summed[3, rank, block] += values[3]
                        continue
                    known[rank, block] = True
                    if shape.needed_at_once:
                        summed[:, rank, block] += values
                    else:
                        highest[:, rank, block] = np.maximum(highest[:, rank, block], values)
    total = summed + np.where(highest > -np.inf, highest, 0.0)
    return np.where(known, total, np.nan)


def steps_of(stack: CommunicatorBatch, row: int, shape: StepShape) -> Iterator[Floats]:
    """(operations, g): what each rank waits in each operation of a step, of the newest steps."""
    steps = shape.blocks if shape.needed_at_once else shape.steps
    taken = shape.steps * shape.per_step
    durations_s = stack.collectives.durations_s[row, shape.length - taken : shape.length]
    for of_step_s in durations_s.reshape(steps, taken // steps, -1):
        yield of_step_s - of_step_s.min(axis=1, keepdims=True)


def of_step(waits_s: Floats, shape: StepShape, pace: float, step_s: float | None) -> Floats:
    """(4, g): shares of time; NaN where no operation of the step can be matched."""
    operations, ranks = waits_s.shape
    by_rank: list[list[float]] = [[0.0] for _ in range(ranks)]
    matched = [of_all for of_all in waits_s if ranks > 1 and not np.isnan(of_all).any()]
    for of_all in matched:
        next_one = max(1, round(0.1 * (ranks - 1)))
        by_rank[int(np.argmin(of_all))].append(sorted(of_all.tolist())[next_one])
    if not matched:
        return np.full((4, ranks), np.nan)
    each_s = pace / operations
    once_s = each_s / shape.keep if step_s is None else min(1 / step_s, pace)
    most = [each_s * sum(lost_s) for lost_s in by_rank]
    if shape.needed_at_once:
        least, waits = most, each_s * np.sum(matched, axis=0)
    else:
        least, waits = [once_s * max(lost_s) for lost_s in by_rank], once_s * np.max(matched, axis=0)
    others = [(sum(least) - own) / max(1, ranks - 1) for own in least]
    return np.array([np.subtract(least, others), most, [sum(most)] * ranks, waits])


def of_peers(stack: CommunicatorBatch) -> bool:
    return stack.operation in MATCHED_OPERATIONS


def at_once(stack: CommunicatorBatch) -> Bools:
    return np.array([not of_peers(stack) or name in NEEDED_AT_ONCE for name in stack.names.tolist()])


@given(jobs())
def test_what_is_lost_all_at_once_is_what_is_lost_number_by_number(job: Job) -> None:
    losses = LateRankLosses(job.judged, job.world, job.step_s)
    for window in WINDOWS:
        late = losses.lateness(window)
        found = np.array([late.at_least, late.at_most, late.among, late.waits])
        np.testing.assert_allclose(found, plainly(job, window), rtol=1e-9, atol=1e-12)


@given(jobs())
def test_who_is_late_is_the_same_when_nothing_else_is_asked(job: Job) -> None:
    losses = LateRankLosses(job.judged, job.world, job.step_s)
    for window in WINDOWS:
        np.testing.assert_array_equal(losses.caused(window).at_least, losses.lateness(window).at_least)


@given(jobs())
def test_the_newest_steps_are_those_of_a_longer_look(job: Job) -> None:
    losses = LateRankLosses(job.judged, job.world, job.step_s)
    newest, all_of_them = losses.caused(NEWEST).at_least, losses.caused(EARLIER).at_least
    assert NEWEST.reported is not None
    shown = min(NEWEST.reported, all_of_them.shape[1])
    np.testing.assert_allclose(newest, all_of_them[:, all_of_them.shape[1] - shown :], rtol=1e-9, atol=1e-12)


@given(st.lists(st.lists(st.sampled_from([1.0, 2.0, float("nan")]), min_size=10, max_size=40), min_size=1))
def test_sizes_repeat_after_as_many_operations_as_in_each_communicator_alone(
    sizes: list[list[float]],
) -> None:
    def stack_of(chosen: list[list[float]]) -> CommunicatorBatch:
        tables = [
            CollectiveTable(
                communicator=str(index),
                operation="AllReduce",
                ranks=[0, 1],
                sequence=np.arange(len(row)),
                durations_s=np.ones((len(row), 2)),
                size_bytes=np.array(row),
                kernel_ratio=np.ones(2),
                operations_per_s=1.0,
            )
            for index, row in enumerate(chosen)
        ]
        (stack,) = stacked(stacks_of(tables), ParallelLayout(world_size=2, tp=1, cp=1, pp=1, dp=2))
        return stack

    def periods(chosen: list[list[float]]) -> list[int]:
        of_all = np.ones(len(chosen), dtype=bool)
        return list(StepPeriod.of(stack_of(chosen), of_all, ~of_all, None).periods)

    def repeats(row: list[float], period: int) -> bool:
        return sum(map(float.__eq__, row[period:], row[:-period])) >= 0.95 * (len(row) - period)

    alone = [
        next((p for p in range(1, len(row) // 3 + 1) if repeats(row, p)), 0) if np.isfinite(row).all() else 0
        for row in sizes
    ]
    assert periods(sizes) == alone
