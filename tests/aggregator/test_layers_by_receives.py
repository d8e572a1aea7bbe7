"""Layers or passes that are alike repeat within a step; what else a rank does shows where its steps begin."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfd.aggregator.operations import OperationSteps
from perfd.model import TrainingStep
from tests.aggregator.test_exact_steps import FSDP, MB, Op, Timeline, assert_exact, trained

LAYER = [Op("AllReduce", size * MB, after_us) for size, after_us in ((33, 4_000), (34, 1_200), (34, 1_100))]
RECEIVE = Op("Recv", 134 * MB, 2_000, 1_500)


def rows_of(timeline: Timeline) -> tuple[list[TrainingStep], OperationSteps]:
    steps, rows = OperationSteps(), list[TrainingStep]()
    for times in timeline.records():
        found = steps.put(replace(times, peer=1) if times.operation == "Recv" else times)
        rows = [*([] if found.anew else rows), *found.rows]
    return rows, steps


@pytest.mark.parametrize(("layers", "parts"), [(2, 1), (12, 1), (12, 3), (40, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_layers_between_two_forward_passes_are_one_step(layers: int, parts: int, seed: int) -> None:
    forward = [RECEIVE] * layers * parts
    timeline = trained(lambda line, _: line.step([forward, LAYER * layers]), 60, seed=seed)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.per_step, steps.pace.certain) == (3 * layers, True)
    assert_exact(rows, timeline.ends_us)
    # Short steps share a row, and the last ones may not fill one.
    assert rows[-1].step + rows[-1].steps_covered > 60


def test_a_step_that_receives_and_reduces_once_stays_one() -> None:
    # Each fifth step evaluates, with more receives.
    def train(line: Timeline, number: int) -> None:
        line.step([[RECEIVE] * 4, LAYER])
        if number % 5 == 4:
            line.step([[RECEIVE] * 20])

    timeline = trained(train, 200)
    _, steps = rows_of(timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == 3


@pytest.mark.parametrize("seed", range(4))
def test_receives_at_random_join_nothing(seed: int) -> None:
    chance = random.Random(seed)

    def train(line: Timeline, _: int) -> None:
        received: Sequence[Op] = [RECEIVE] * chance.randrange(3) if chance.random() < 0.3 else []
        line.step([received, LAYER])

    timeline = trained(train, 300, seed=seed)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == 3
    assert rows[-1].step + rows[-1].steps_covered > 300


EMBEDDINGS = Op("AllGather", 65_536, 3_000, 500)


def test_two_passes_that_exchange_embeddings_once_are_one_step() -> None:
    timeline = trained(
        lambda line, _: line.step([[EMBEDDINGS] * 2, LAYER, [Op("Broadcast", 8, 100)], LAYER]), 90
    )
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == 2 * len(LAYER)
    assert_exact(rows, timeline.ends_us)


def test_evaluations_that_gather_each_fifth_step_join_nothing() -> None:
    def train(line: Timeline, number: int) -> None:
        line.step([LAYER])
        if number % 5 == 4:
            line.step([[EMBEDDINGS] * 8])

    _, steps = rows_of(trained(train, 300))

    assert steps.pace is not None
    assert steps.pace.per_step == len(LAYER)


@pytest.mark.parametrize("every", [6, 20])
def test_flags_that_come_with_checkpoints_do_not_count_micro_batches(every: int) -> None:
    flag = Op("AllReduce", 4, 2_000_000, 50)

    def train(line: Timeline, number: int) -> None:
        # After a checkpoint the host is no longer ahead of its GPU.
        line.step([FSDP], lead_us=500 if number % every == 0 else None)
        if number % every == every - 1:
            line.step([[flag]], pause_us=1_000_000)

    timeline = trained(train, 14 * every)
    _, steps = rows_of(timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == 17
