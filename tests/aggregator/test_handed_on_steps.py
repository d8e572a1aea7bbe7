"""Steps of jobs whose groups only hand data on: pipeline stages and tensor groups. And none by chance."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from perfd.aggregator.operations import OperationSteps
from perfd.analysis.data.job_data import OperationPace
from perfd.model import CollectiveTimes, TimingSource, TrainingStep

MB = 1 << 20
SECOND_NS = 10**9

Done = tuple[str, str, int | None, int, float, float]
"""Communicator, operation, peer, size in bytes, end and duration in seconds."""


def records(done: Sequence[Done], *, starts: bool = False) -> Iterator[CollectiveTimes]:
    """Second by second, as the agent reports them; with `starts` it is known when each began."""
    counted: dict[tuple[str, str, int | None], int] = {}
    by_second: dict[tuple[int, str, str, int | None], list[tuple[int, float, float]]] = {}
    for communicator, operation, peer, size, end_s, lasts_s in done:
        by_second.setdefault((int(end_s), communicator, operation, peer), []).append((size, end_s, lasts_s))
    for (second, communicator, operation, peer), within in sorted(
        by_second.items(), key=lambda one: one[0][0]
    ):
        first = counted.get((communicator, operation, peer), 0)
        counted[communicator, operation, peer] = first + len(within)
        lasted = [lasts_s for _, _, lasts_s in within]
        begun_us = [round((end_s - lasts_s - second) * 1e6) for _, end_s, lasts_s in within]
        yield CollectiveTimes(
            job="job",
            rank=0,
            communicator=communicator,
            operation=operation,
            peer=peer,
            timing=TimingSource.GPU,
            start_unix_ns=second * SECOND_NS,
            end_unix_ns=(second + 1) * SECOND_NS,
            count=len(within),
            total_bytes=float(sum(size for size, _, _ in within)),
            total_s=sum(lasted),
            min_s=min(lasted),
            max_s=max(lasted),
            sequences=range(first, first + len(within)),
            durations_ns=[round(one * 1e9) for one in lasted],
            sizes_bytes=[size for size, _, _ in within],
            start_increments_us=[b - a for a, b in zip([0, *begun_us], begun_us, strict=False)]
            if starts
            else (),
            queued_us=[30_000] * len(within) if starts else (),
        )


def rows_of(reported: Iterator[CollectiveTimes]) -> tuple[list[TrainingStep], OperationPace | None]:
    steps, rows = OperationSteps(), []
    for times in reported:
        found = steps.put(times)
        rows = [*([] if found.anew else rows), *found.rows]
    return rows, steps.pace


def pipeline(steps: int, *, micro_batches: int, step_s: float, wait_s: float) -> list[Done]:
    """A stage of two: in each step the last receive runs alone, and waits."""
    done: list[Done] = []
    for step in range(steps):
        for at in range(micro_batches):
            end_s = 1000 + (step + (at + 1) / micro_batches) * step_s - 0.001
            done.append(("pair", "Send", 1, 16 * MB, end_s - 0.01, 0.00005))
            lasts_s = wait_s if at == micro_batches - 1 else 0.00005
            done.append(("pair", "Recv", 1, 16 * MB, end_s, lasts_s))
    return done


@pytest.mark.parametrize("micro_batches", [2, 4, 16])
def test_a_pipeline_that_reduces_nothing_shows_steps_by_the_receive_that_waits(micro_batches: int) -> None:
    rows, pace = rows_of(records(pipeline(200, micro_batches=micro_batches, step_s=0.1, wait_s=0.009)))

    assert pace is not None
    assert (pace.operation, pace.per_step, pace.certain) == ("Recv", micro_batches, False)
    assert rows[-1].step == pytest.approx(200, abs=35)
    for row in rows:
        assert row.step_time_s == pytest.approx(0.1, rel=0.02)


def test_receives_that_all_take_alike_show_no_steps() -> None:
    assert rows_of(records(pipeline(200, micro_batches=4, step_s=0.1, wait_s=0.00007))) == ([], None)


def test_what_a_pipeline_hands_on_waits_for_the_reductions_that_end_steps() -> None:
    done = pipeline(200, micro_batches=4, step_s=0.1, wait_s=0.009)
    ends_s = [1000 + (step + 1) * 0.1 - 0.001 for step in range(200)]
    reduced = [("dp", "AllReduce", None, size * MB, end_s, 0.001) for end_s in ends_s for size in (2, 3)]
    rows, pace = rows_of(records(sorted([*done, *reduced], key=lambda one: one[4])))

    assert pace is not None
    # Where it is unknown when operations began, pauses show nothing of an optimizer.
    assert (pace.operation, pace.certain) == ("AllReduce", False)
    assert rows[-1].step == pytest.approx(200, abs=35)


def tensor_group(steps: int) -> list[Done]:
    """Four micro-batches of 50 ms, then 20 ms of the optimizer; each begins with broadcasts of its data."""
    done: list[Done] = []
    now_s = 1000.0
    for _ in range(steps):
        for _ in range(4):
            for size in (32 << 10, 32 << 10, 16 << 10, 32 << 10, 8 * MB):
                now_s += 0.0002
                done.append(("tp", "Broadcast", None, size, now_s, 0.0001))
            for _ in range(50):
                now_s += 0.00098
                done.append(("tp", "AllReduce", None, 16 * MB, now_s, 0.0005))
            done.append(("model", "AllReduce", None, 4, now_s, 0.0001))
        now_s += 0.02
    return done


def test_a_tensor_group_alone_shows_micro_batches_by_what_it_broadcasts() -> None:
    rows, pace = rows_of(records(tensor_group(100)))

    assert pace is not None
    # A number is reduced in each micro-batch, too: that does not make it a step.
    assert (pace.operation, pace.certain) == ("Broadcast", False)
    assert rows


def test_where_it_is_known_when_they_began_the_optimizer_shows_its_steps() -> None:
    rows, pace = rows_of(records(tensor_group(100), starts=True))

    assert pace is not None
    # Other work of each fourth step would look the same.
    assert (pace.operation, pace.certain, pace.exact) == ("Broadcast", False, True)
    assert rows[-1].step == pytest.approx(100, abs=2)
    for row in rows:
        assert row.step_time_s == pytest.approx(4 * 0.05 + 0.02, rel=0.01)


def test_micro_batches_are_counted_while_steps_run_and_not_while_the_job_starts() -> None:
    """The group broadcasts a little in each second of a slow start; norms and flags come with each step."""
    done: list[Done] = [("tp", "Broadcast", None, 32 << 10, 992.5 + second, 0.0001) for second in range(8)]
    now_s = 1000.0
    for _ in range(120):
        for _ in range(3):
            for size in (32 << 10, 32 << 10, 16 << 10, 32 << 10, 8 * MB):
                now_s += 0.0002
                done.append(("tp", "Broadcast", None, size, now_s, 0.0001))
            now_s += 0.05
        for _ in range(4):
            now_s += 0.0004
            done.append(("model", "AllReduce", None, 4, now_s, 0.0001))
        now_s += 0.02
    rows, pace = rows_of(records(done, starts=True))

    assert pace is not None
    assert (pace.operation, pace.certain) == ("Broadcast", False)
    assert rows[-1].time_unix_ns / 1e9 == pytest.approx(now_s, abs=1.5)
    assert sum(row.step_time_s or 0.0 for row in rows[-50:]) / 50 == pytest.approx(0.1746, rel=0.01)


KINDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "Send", "Recv")


@pytest.mark.parametrize("starts", [False, True], ids=["windows", "starts"])
@pytest.mark.parametrize("seed", range(6))
def test_random_operations_of_random_sizes_show_no_steps(seed: int, starts: bool) -> None:
    """A benchmark that does anything at any time for half a minute, at 5 to 100 operations a second."""
    chance = random.Random(seed)
    communicators = [f"c{number}" for number in range(chance.randrange(1, 4))]
    per_s, sizes = chance.choice([5, 30, 100]), [round(2 ** chance.uniform(2, 28)) for _ in range(64)]
    now_s = 1000.0
    done: list[Done] = []
    while now_s < 1030:
        lasts_s = chance.expovariate(2 * per_s)
        now_s += lasts_s + chance.expovariate(2 * per_s)
        operation = chance.choice(KINDS)
        peer = chance.randrange(1, 4) if operation in {"Send", "Recv"} else None
        size = chance.choice(sizes) if seed % 2 else round(2 ** chance.uniform(2, 28))
        done.append((chance.choice(communicators), operation, peer, size, now_s, lasts_s))

    assert rows_of(records(done, starts=starts)) == ([], None)


@pytest.mark.parametrize("seed", range(6))
def test_receives_of_one_size_that_wait_at_random_show_no_steps(seed: int) -> None:
    chance = random.Random(seed)
    done: list[Done] = [
        ("pair", "Recv", 1, 16 * MB, 1000 + at / 40, chance.choice([0.00005, 0.00005, 0.00005, 0.009]))
        for at in range(2000)
    ]

    assert rows_of(records(done)) == ([], None)


@pytest.mark.parametrize("total_bytes", [math.inf, math.nan])
def test_a_record_whose_bytes_are_no_number_does_not_end_the_search(total_bytes: float) -> None:
    done = [
        ("world", "AllReduce", None, (at + 4) * MB, 1000 + step / 2 + at * 0.03 + 0.02, 0.02)
        for step in range(60)
        for at in range(10)
    ]
    damaged, *whole = records(done, starts=True)
    rows, _ = rows_of(iter([replace(damaged, total_bytes=total_bytes), *whole]))
    assert len(rows) >= 50
    assert {round(row.step_time_s, 3) for row in rows} == {0.5}
