"""What operations of one size repeat by the pauses between them, and that random ones repeat nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.analysis.operations.pause_pattern import PausePattern, are_numbered, are_steady, pause_pattern
from tests.support.examples import examples

LASTS_US = 1_000


def found(pauses_us: Sequence[float], *, sampled: bool = False) -> PausePattern | None:
    starts = np.cumsum([0.0, *(pause + LASTS_US for pause in pauses_us)])
    return pause_pattern(starts, starts + LASTS_US, sampled=sampled)


def steps(
    count: int, buckets: int, chance: random.Random, *, pause_us: float, inside_us: float = 4_000.0
) -> list[float]:
    inside = [inside_us * chance.uniform(0.5, 1.5) for _ in range(count * (buckets - 1))]
    each = [inside[at * (buckets - 1) :][: buckets - 1] for at in range(count)]
    return [pause for step in each for pause in (*step, pause_us * chance.uniform(0.8, 1.2))]


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(2, 80), st.integers(0, 79), st.integers(0, 2**32))
def test_any_cut_of_steps_with_a_longer_pause_has_their_number_of_operations(buckets, cut, seed):
    pauses = steps(60, buckets, random.Random(seed), pause_us=max(100_000.0, 2_000.0 * buckets))
    shown = found(pauses[cut % buckets :])
    assert shown is not None
    assert shown.period == buckets
    # The last pause is the one after a step, of which the newest operation is the next one's first.
    assert shown.after_last == 1
    assert shown.length >= 30 * buckets


@pytest.mark.parametrize("behind", [1, 3, 7])
def test_the_newest_group_ends_before_the_longer_pause(behind):
    shown = found(steps(30, 8, random.Random(1), pause_us=100_000.0)[: -8 + behind])
    assert shown is not None
    assert (shown.period, shown.after_last) == (8, behind + 1)


def two_states(chance: random.Random) -> list[float]:
    slow, pauses = False, []
    for _ in range(2_000):
        slow ^= chance.random() < 0.15
        pauses.append(chance.uniform(20e3, 80e3) if slow else chance.uniform(1e3, 2e3))
    return pauses


def walk(chance: random.Random, pause_us: float) -> list[float]:
    pauses = [pause_us]
    for _ in range(2_000):
        pauses.append(min(4 * pause_us, max(pause_us / 4, pauses[-1] * chance.lognormvariate(0, 0.05))))
    return pauses


RANDOM: dict[str, Callable[[random.Random], list[float]]] = {
    "exponential": lambda chance: [chance.expovariate(1 / 20e3) for _ in range(2_000)],
    "even": lambda chance: [chance.uniform(0, 40e3) for _ in range(2_000)],
    "long tail": lambda chance: [chance.lognormvariate(9, 1.5) for _ in range(2_000)],
    "rarely long": lambda chance: [chance.choice([100, 100, 100, 200e3]) for _ in range(2_000)],
    "bursts of any number": lambda chance: [
        pause
        for _ in range(200)
        for pause in (*[chance.uniform(0, 3e3)] * chance.randrange(2, 12), chance.uniform(1e5, 3e5))
    ],
    "short": lambda chance: [chance.expovariate(1 / 1e3) for _ in range(2_000)],
    "short and rarely long": lambda chance: [chance.choice([*[100] * 7, 9e3]) for _ in range(2_000)],
    "short bursts of any number": lambda chance: [
        pause
        for _ in range(250)
        for pause in (*[chance.uniform(0, 300)] * chance.randrange(5, 11), chance.uniform(5e3, 20e3))
    ],
    "two states": two_states,
    "walk": lambda chance: walk(chance, 30e3),
    "short walk": lambda chance: walk(chance, 2e3),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", RANDOM)
def test_random_pauses_show_nothing_at_any_look(name, seed):
    pauses = RANDOM[name](random.Random(seed))
    assert {found(pauses[:seen]) for seen in range(40, len(pauses), 97)} == {None}


def test_layers_of_a_tensor_group_are_not_steps_but_all_of_them_together_are():
    chance = random.Random(1)
    layers = [pause * chance.uniform(0.9, 1.1) for _ in range(20) for pause in (300, 1_000)]
    assert found(layers * 20) is None
    shown = found([*layers[:-1], 80_000.0] * 20)
    assert shown is not None
    assert shown.period == 40


def folding(ratio: float, inside: int, *, ends: int = 2) -> list[float]:
    """Steps whose longest pause is `ratio` times the next one; the others vary at random."""
    chance = random.Random(1)
    return [
        pause
        for _ in range(60)
        for pause in (
            *(chance.uniform(0, 8_000) for _ in range(inside)),
            *[50_000 * chance.uniform(0.95, 1.05)] * (ends - 1),
            ratio * 50_000 * chance.uniform(0.95, 1.05),
        )
    ]


def test_pauses_that_repeat_as_a_whole_show_steps_even_if_none_stands_out():
    # Data-parallel JAX: seven reductions in the backward pass, and a separate one before them.
    shown = found(folding(1.4, 6))
    assert shown is not None
    assert (shown.period, shown.after_last) == (8, 1)
    assert found(folding(1.4, 6), sampled=True) is None


@pytest.mark.parametrize(("inside", "shown"), [(3, True), (2, False)])
def test_as_few_operations_as_a_layer_has_show_nothing_as_a_whole(inside, shown):
    assert (found(folding(1.4, inside)) is not None) is shown


@pytest.mark.parametrize(("noise", "shown"), [(0.5, True), (2.0, False)])
def test_pauses_that_vary_more_than_they_repeat_show_nothing(noise, shown):
    chance = random.Random(1)
    pauses = [pause + chance.uniform(0, noise * 70_000) for pause in folding(1.4, 6)]
    assert (found(pauses) is not None) is shown


@pytest.mark.parametrize(("ratio", "shown"), [(2.1, True), (1.9, False)])
def test_the_pause_after_few_operations_is_clearly_longer(ratio, shown):
    pauses = [10_000.0, 10_000.0, 10_000.0, ratio * 10_000.0] * 40
    assert (found(pauses) is not None) is shown


def test_short_steps_are_found_if_their_pause_stands_out_more_than_those_of_layers():
    chance = random.Random(1)
    steps_of_14_ms = steps(200, 8, chance, pause_us=9_000.0, inside_us=200.0)
    shown = found(steps_of_14_ms)
    assert shown is not None
    assert (shown.period, shown.after_last) == (8, 1)
    sampled = found(steps(400, 4, chance, pause_us=9_000.0, inside_us=1_300.0), sampled=True)
    assert sampled is not None
    assert sampled.period == 4
    assert found([100.0, 100.0, 44_000.0] * 100) is not None


@pytest.mark.parametrize(("ratio", "shown"), [(5.1, True), (4.9, False)])
def test_the_pause_of_short_steps_is_five_times_as_long_as_others(ratio, shown):
    assert (found([1_000.0, 1_000.0, ratio * 1_000.0] * 100) is not None) is shown


def test_layers_of_both_passes_are_not_short_steps_even_if_one_pause_stands_out():
    chance = random.Random(1)
    layers = [
        pause * chance.uniform(0.95, 1.05)
        for _ in range(8)
        for of_pass_us in (6_000.0, 12_000.0)
        for _ in range(24)
        for pause in (of_pass_us / 10, of_pass_us)
    ]
    assert {found(layers[:seen]) for seen in range(200, len(layers), 41)} == {None}


def test_a_rank_that_stalls_in_some_steps_hides_nothing():
    each = [4_000.0] * 7 + [60_000.0]
    stalled = [4_000.0] * 3 + [300_000.0] + [4_000.0] * 3 + [60_000.0]
    for between in (4, 2):
        shown = found([*each * between, *stalled] * 9)
        assert shown is not None
        assert shown.period == 8


def test_groups_of_another_number_before_do_not_count():
    chance = random.Random(1)
    before, since = (steps(30, buckets, chance, pause_us=100_000.0) for buckets in (11, 8))
    shown = found(before + since)
    assert shown is not None
    assert shown.period == 8
    assert 26 * 8 <= shown.length <= 32 * 8


@pytest.mark.parametrize("count", [0, 1, 20])
def test_few_operations_show_nothing(count):
    assert found([1_000.0, 100_000.0] * count) is None


def test_single_operations_may_be_steps_if_they_come_as_evenly():
    chance = random.Random(1)
    even = np.cumsum([100_000 * chance.uniform(0.8, 1.2) for _ in range(160)])
    changed = np.concatenate((even, even[-1] + np.cumsum([130_000 * chance.uniform(0.8, 1.2)] * 160)))
    uneven = np.cumsum([chance.expovariate(1 / 100e3) for _ in range(160)])
    interrupted = np.cumsum([1_000_000.0 if at % 5 == 0 else 100_000.0 for at in range(160)])
    assert are_steady(even)
    assert are_steady(changed)
    assert are_steady(even[:129])
    assert not are_steady(even[:128])
    assert not are_steady(uneven)
    assert not are_steady(interrupted)


def test_few_single_operations_may_be_steps_if_they_hardly_differ():
    chance = random.Random(1)

    def starts_us(spread, count=65):
        return np.cumsum([100_000 * chance.uniform(1 - spread, 1 + spread) for _ in range(count)])

    assert are_steady(starts_us(0.02))
    assert not are_steady(starts_us(0.02, count=64))
    assert not are_steady(starts_us(0.2))


@pytest.mark.parametrize("each_time", [0.0005, 0.002, 0.01, 0.03])
def test_single_operations_with_slowly_wandering_intervals_are_not_steps(each_time):
    for seed in range(10):
        chance, interval_us, starts_us = random.Random(seed), 100_000.0, [0.0]
        for _ in range(600):
            interval_us = min(400_000.0, max(25_000.0, interval_us * chance.lognormvariate(0, each_time)))
            starts_us.append(starts_us[-1] + interval_us)
        assert not any(are_steady(np.array(starts_us[:seen])) for seen in range(20, 600, 20))


def test_operations_with_equally_many_scalars_reduced_in_between_are_steps():
    chance = random.Random(1)
    starts_us = np.cumsum([chance.uniform(50e3, 500e3) for _ in range(40)])
    four = np.concatenate([starts_us + after for after in (10e3, 10.1e3, 10.2e3, 10.4e3)])
    at_random = np.array([chance.uniform(0, starts_us[-1]) for _ in range(160)])
    assert are_numbered(starts_us, four)
    assert are_numbered(starts_us[-12:], four)
    assert not are_numbered(starts_us[-10:], four)
    assert not are_numbered(starts_us, at_random)
    assert not are_numbered(starts_us, starts_us[::2] + 1e3)
    assert not are_numbered(starts_us, np.zeros(0))


def short_steps(count: int, chance: random.Random) -> list[float]:
    """Six reductions in 32 ms, with long pauses before the backward pass and after its first layer."""
    usual_us = (9_000.0, 1_500.0, 1_500.0, 1_500.0, 300.0, 15_000.0)
    return [pause * chance.uniform(0.9, 1.1) for _ in range(count) for pause in usual_us]


@pytest.mark.parametrize("steps_seen", [160, 161])
def test_short_steps_without_one_clear_pause_are_found_once_no_model_has_so_many_layers(
    steps_seen: int,
) -> None:
    shown = found(short_steps(steps_seen, random.Random(1))[1:])
    assert (shown.period if shown else None) == (6 if steps_seen > 160 else None)


@pytest.mark.parametrize(("layers", "period"), [(80, None), (400, 6)])
def test_short_repeats_with_breaks_between_them_are_layers(layers: int, period: int | None) -> None:
    chance = random.Random(1)
    pauses = [pause for _ in range(6) for pause in (*short_steps(layers, chance)[:-1], 100_000.0)][-2_000:]
    shown = found(pauses)
    assert (shown.period if shown else None) == period
