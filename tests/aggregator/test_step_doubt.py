"""What repeats may be a part of a step, or several steps: no such count is called certain."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable
from dataclasses import replace

import pytest
from aggregator.support import aggregator

from perfd.aggregator.operations import OperationSteps
from perfd.model import StepDoubt
from tests.aggregator.test_exact_steps import (
    DDP,
    FSDP,
    MB,
    Op,
    Timeline,
    assert_exact,
    rows_of,
    trained,
)
from tests.support.fake_agent import FakeAgent

OPTIMIZER_US = 3_000
STEADY = 0.002
"""Jitter of compute that leaves an optimizer of this model visible."""


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_gradients_that_are_reduced_in_each_micro_batch_show_steps_by_the_optimizer(parts: int) -> None:
    timeline = trained(lambda line, _: line.step([DDP] * parts, pause_us=OPTIMIZER_US), 70, jitter=STEADY)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.per_step, steps.pace.doubt) == (5 * parts, StepDoubt.MICRO_BATCHES)
    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step == pytest.approx(70, abs=1)


def test_updates_between_which_a_policy_acts_are_no_certain_steps() -> None:
    # The host waits for what the GPU chose, so that its lead is lost.
    def act(line: Timeline, _: int) -> None:
        for number in range(16):
            line.step(
                [DDP], pause_us=240_000 if number == 15 else 4_000, lead_us=500 if number == 0 else None
            )

    _, steps = rows_of(trained(act, 12, jitter=STEADY))

    assert steps.pace is not None
    assert steps.pace.doubt is StepDoubt.MICRO_BATCHES


@pytest.mark.parametrize("reductions", [2, 40])
def test_what_is_reduced_at_once_may_be_parameters_after_several_steps(reductions: int) -> None:
    # Local SGD: no compute of a backward pass is between the reductions.
    averaged = [Op("AllReduce", (20 + at) * MB, 30 if at else 900_000, 150) for at in range(reductions)]
    _, steps = rows_of(trained(lambda line, _: line.step([averaged], pause_us=0), 100, jitter=STEADY))

    assert steps.pace is not None
    assert steps.pace.doubt is StepDoubt.ROUNDS


def test_an_optimizer_of_few_parameters_does_not_show_whether_micro_batches_are_steps() -> None:
    adapters = [Op("AllReduce", size * MB, 60_000) for size in (4, 5)]
    _, steps = rows_of(trained(lambda line, _: line.step([adapters] * 4, pause_us=150), 60))

    assert steps.pace is not None
    assert not steps.pace.certain


def test_few_steps_are_not_certain_yet() -> None:
    certain = {}
    for count in (40, 90):
        _, steps = rows_of(trained(lambda line, _: line.step([DDP]), count, jitter=STEADY))
        certain[count] = steps.pace is not None and steps.pace.certain

    assert certain == {40: False, 90: True}


@pytest.mark.parametrize("period_us", [0, 400_000], ids=["none", "every tenth"])
def test_a_discriminator_and_a_generator_are_one_step(period_us: int) -> None:
    adversarial = [*DDP, *(Op("AllReduce", size * MB, 9_000) for size in (40, 41, 90))]

    def train(line: Timeline, number: int) -> None:
        line.step([adversarial], pause_us=period_us if number % 10 == 9 and period_us else 4_000)

    timeline = trained(train, 120, jitter=STEADY)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    # An evaluation looks like what ends a step of ten parts.
    assert (steps.pace.per_step, steps.pace.certain) == (8, period_us == 0)
    assert_exact(rows, timeline.ends_us)


@pytest.mark.parametrize("every", [5, 10])
def test_what_is_sent_every_few_steps_makes_no_step_of_them(every: int) -> None:
    """A moving average of the parameters, for example: it comes after the optimizer of a step."""

    def train(line: Timeline, number: int) -> None:
        line.step([DDP], pause_us=OPTIMIZER_US)
        if number % every == every - 1:
            line.step([[Op("Broadcast", size * MB, 20, 2_000) for size in (20, 21, 22)]], pause_us=0)
            line.ends_us.pop()

    timeline = trained(train, 120, jitter=STEADY)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.operation, steps.pace.per_step) == ("AllReduce", 5)
    assert_exact(rows, timeline.ends_us)


def logged_loss(line: Timeline, number: int) -> None:
    """FSDP without micro-batches or clipping, which prints the mean loss of each tenth step."""
    line.step([FSDP])
    if number % 10 == 9:
        line.step([[Op("AllReduce", 4, 300, 10)]], pause_us=0)


def logged_losses(line: Timeline, _: int) -> None:
    """FSDP that reduces the loss in each of four micro-batches, and prints it."""
    for number in range(4):
        line.step([FSDP, [Op("AllReduce", 4, 300, 10)]], pause_us=OPTIMIZER_US if number == 3 else 0)


@pytest.mark.parametrize("train", [logged_loss, logged_losses])
def test_a_loss_that_is_reduced_is_no_norm_of_gradients(train: Callable[[Timeline, int], None]) -> None:
    _, steps = rows_of(trained(train, 120))

    assert steps.pace is not None
    assert not steps.pace.certain


def test_an_optimizer_that_takes_longer_each_tenth_step_does_not_end_a_step_for_certain() -> None:
    # Preconditioners are renewed; an optimizer runs before each gather, none of which begins at once.
    waiting = [Op("AllGather", 262 * MB, 4_000), *FSDP[1:]]

    def train(line: Timeline, number: int) -> None:
        line.step([waiting], pause_us=60_000 if number % 10 == 9 else 0)

    _, steps = rows_of(trained(train, 150))

    assert steps.pace is not None
    assert not steps.pace.certain


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parts", [2, 3, 4, 6, 8, 16, 32, 64])
def test_at_no_moment_are_micro_batches_certain_steps(parts: int, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randrange(20, 200) for _ in range(chance.randrange(2, 20))]
    lead_us, micro_batch_us = chance.choice([0, 2_000, 100_000]), chance.randrange(20_000, 200_000)
    backward = [Op("AllReduce", size * MB, micro_batch_us // len(sizes)) for size in sizes]
    backward[0] = Op("AllReduce", sizes[0] * MB, micro_batch_us)
    # As Adam takes on an H100 at least.
    optimizer_us = round(sum(sizes) * MB * 7 / 3.35e6)
    timeline = Timeline(seed=seed, lead_us=lead_us, jitter=chance.choice([0.0005, 0.003, 0.02]))
    for _ in range(600 // parts):
        timeline.step([backward] * parts, pause_us=optimizer_us)
    steps = OperationSteps()
    for times in timeline.records():
        steps.put(times)
        pace = steps.pace
        assert pace is None or not pace.certain or pace.per_step == parts * len(sizes)


def test_a_jobs_entry_for_the_page_has_the_doubt() -> None:
    timeline = trained(lambda line, _: line.step([FSDP], pause_us=0), 80)
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        for times in timeline.records():
            agent.send(replace(times, job="llm"))
        running.tick()
        with urllib.request.urlopen(f"http://{running.http_address}/api/v1/jobs") as answer:
            (entry,) = json.load(answer)["jobs"]

    assert entry["steps"]["doubt"] == "micro-batch"
    assert entry["steps"]["last"] == 80
