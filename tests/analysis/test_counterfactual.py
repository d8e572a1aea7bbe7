"""What a step would gain without a rank's excess, and since when a fault is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.counterfactual import (
    LateStretch,
    StepChange,
    gains_by_step,
    is_over,
    late_steps,
    late_stretch,
    latest_excess_by_step,
    periodic_stalls,
    slow_since,
    stalled_steps,
    step_change,
    takes_turns,
    trimmed_mean,
)
from perfd.analysis.data.job_data import Floats
from perfd.analysis.layout import role_name, roles_of
from perfd.model import ParallelLayout

STEPS = 60


def waits(arrivals_s: Floats) -> Floats:
    """What each peer waits for the last one; (steps, ranks)."""
    return arrivals_s.max(axis=1, keepdims=True) - arrivals_s


def gain_s(arrivals_s: Floats, member: int) -> float:
    """The mean gain of a step without a member's excess."""
    return float(np.nanmean(gains_by_step(waits(arrivals_s)[None], np.array([member]))[0]))


@st.composite
def arrivals(draw: st.DrawFn) -> Floats:
    ranks = draw(st.sampled_from([2, 3, 4, 9, 33]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    own = random.normal(1.0, 0.05, (STEPS, ranks))
    own[:, draw(st.integers(0, ranks - 1))] += draw(st.sampled_from([0.0, 0.0, 0.1, 1.0]))
    return own


@given(arrivals(), st.floats(0.0, 10.0))
def test_a_slowdown_of_all_ranks_alike_gains_nothing_more(own: Floats, slower_s: float) -> None:
    in_step = slower_s * np.arange(STEPS)[:, None]
    assert gain_s(own + in_step, 0) == pytest.approx(gain_s(own, 0), abs=1e-6)


@given(arrivals(), st.integers(0, 1000))
def test_ranks_in_another_order_gain_the_same(own: Floats, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(own.shape[1])
    gains = [gain_s(own, member) for member in range(own.shape[1])]
    moved = [gain_s(own[:, order], member) for member in range(own.shape[1])]
    assert moved == pytest.approx([gains[member] for member in order])


# Of many a few may be slow together, whose excess goes, too.
@given(arrivals().filter(lambda own: own.shape[1] <= 4))
def test_no_more_is_gained_than_the_others_wait(own: Floats) -> None:
    waited = waits(own)
    for member in range(own.shape[1]):
        others = np.delete(waited, member, axis=1).min(axis=1)
        assert (gains_by_step(waited[None], np.array([member]))[0][0] <= others + 1e-9).all()


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_a_wait_of_every_rank_in_a_step_is_not_charged_to_a_rank(ranks: int) -> None:
    # NCCL kernels that wait for a multiprocessor: each rank is waited for in another operation of the step.
    alike = np.full((1, STEPS, ranks), 0.015)
    late = alike + waits(np.eye(ranks)[1] * np.ones((STEPS, 1)))[None]
    for member in range(ranks):
        assert gains_by_step(alike, np.array([member]))[0] == pytest.approx(0.0)
        assert gains_by_step(late, np.array([member]))[0] == pytest.approx(1.0 if member == 1 else 0.0)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_what_is_gained_is_what_a_job_without_the_fault_takes_less(ranks: int) -> None:
    random = np.random.default_rng(1)
    healthy = random.normal(1.0, 0.02, (400, ranks))
    always, now_and_then = healthy.copy(), healthy.copy()
    always[:, 1] += 0.2
    now_and_then[::5, 1] += 0.6
    for faulty in (always, now_and_then):
        really = float(faulty.max(axis=1).mean() - healthy.max(axis=1).mean())
        assert gain_s(faulty, 1) == pytest.approx(really, abs=0.01)
        # It is the rank's own fault.
        assert gain_s(faulty, 0) <= 0.005


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_to_be_late_in_turn_gains_nothing(ranks: int) -> None:
    own = np.ones((48, ranks))
    own[np.arange(48), np.arange(48) % ranks] += 0.5
    for member in range(ranks):
        assert gain_s(own, member) == pytest.approx(0.0, abs=1e-9)


def test_two_slow_ranks_of_many_do_not_excuse_each_other_and_two_of_four_do() -> None:
    many, four = np.ones((STEPS, 32)), np.ones((STEPS, 4))
    many[:, [3, 4]] += 0.2
    four[:, [2, 3]] += 0.2
    assert gain_s(many, 3) == pytest.approx(0.2)
    assert gain_s(four, 3) == pytest.approx(0.0)


def test_steps_that_are_not_known_say_nothing_of_the_others() -> None:
    own = np.ones((STEPS, 4))
    own[:, 1] += 0.2
    waited = waits(own)
    waited[::3] = np.nan
    gains = gains_by_step(waited[None], np.array([1]))[0][0]
    assert np.isnan(gains[::3]).all()
    assert gains[1] == pytest.approx(0.2)


def test_one_pause_is_left_out_of_the_mean_and_a_stall_in_every_block_is_not() -> None:
    pause, stalls = np.zeros(50), np.zeros(50)
    pause[17] = 100.0
    stalls[::5] = 1.0
    assert trimmed_mean(pause, 10) == 0.0
    assert trimmed_mean(stalls, 10) == pytest.approx(0.2)
    # Of fewer blocks nothing can be left out.
    assert trimmed_mean(pause, 4) == pytest.approx(100 / 48)


def flags(*runs: int) -> np.ndarray:
    """So many steps without, with, without and with a late rank, and so on; the newest last."""
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


@pytest.mark.parametrize(
    ("late", "stretch"),
    [
        (flags(5, 3), LateStretch(steps=3)),
        (flags(4, 3), None),
        (flags(0, 20), None),
        (flags(20), None),
        (flags(*[1] * 20), None),
        (flags(9, 1, 10, 10), LateStretch(steps=10)),
        # It has ended.
        (flags(5, 4, 1), LateStretch(steps=4, over=1)),
        (flags(5, 3, 1), None),
        (flags(20, 8, 10), LateStretch(steps=8, over=10)),
        (flags(20, 8, 11), None),
        (flags(20, 8, 6, 1, 3), LateStretch(steps=8, over=10)),
        # In a third of its steps something else was slow.
        (flags(20, 2, 1, 2, 1, 2, 1, 2), LateStretch(steps=11)),
        (flags(20, *[1, 1] * 6), None),
        # Another fault of that rank lies further back.
        (flags(5, 15, 20, 6), LateStretch(steps=6)),
    ],
)
def test_a_fault_has_the_steps_in_a_row_in_which_the_rank_is_late(
    late: np.ndarray, stretch: LateStretch | None
) -> None:
    assert late_stretch(late) == stretch


@pytest.mark.parametrize(
    ("turns", "taken"),
    [
        ("x8 o8 x8", True),
        ("o8 x8 o8", True),
        ("x8 .3 o8 .3 x8 .5", True),
        # A turn has steps in which neither is late, but none of the other one.
        ("x4 .1 x4 o8 x3 o1 x4", False),
        ("x4 .1 x4 o8 x4 .3 x4", True),
        ("x4 .1 x4 o8 x4 .3 x3", False),
        ("x8 o4 .7 o4 x8", True),
        ("x8 o4 .8 o4 x8", False),
        ("x7 o8 x8", False),
        ("x8 o7 x8", False),
        ("x8 .4 o8 x8", False),
        ("x20 o20", False),
        # Two faults of one rank, and nobody late between them.
        ("x20 .20 x20", False),
        ("x20 .20 o20 .20 x20", False),
        ("", False),
    ],
)
def test_ranks_take_turns_where_each_is_late_for_some_steps_right_after_the_other(
    turns: str, taken: bool
) -> None:
    steps = "".join(one[0] * int(one[1:]) for one in turns.split())
    late, others_late = (np.array([step == whose for step in steps], dtype=np.bool_) for whose in "xo")
    assert takes_turns(late, others_late) is taken
    # Of one of them less may be known.
    assert takes_turns(np.append(np.zeros(9, dtype=np.bool_), late), others_late) is taken


@pytest.mark.parametrize(("late", "over"), [(3, 0), (20, 0), (5, 3), (10, 8)])
def test_a_late_step_is_one_in_which_any_operation_shows_half_of_the_delay(late: int, over: int) -> None:
    delay_s = np.repeat([0.0, 0.1, 0.0], [15, late, over]) + np.tile([0.01, -0.01], 30)[: 15 + late + over]
    caught_up_s = np.where(np.arange(len(delay_s)) % 2, delay_s, 0.0)
    beside_s = np.where(np.arange(len(delay_s)) % 2, -0.1, delay_s)[3:]
    for excess_s in ([delay_s], [caught_up_s, beside_s], [beside_s, caught_up_s, np.zeros(0)]):
        assert late_stretch(late_steps(excess_s)) == LateStretch(steps=late, over=over)


def test_of_steps_that_nobody_knows_none_is_late() -> None:
    assert late_steps([]).tolist() == []
    assert late_steps([np.array([math.nan, math.nan, 0.1])]).tolist() == [False, False, True]
    assert not late_steps([np.full(30, math.nan)]).any()
    assert not late_steps([np.full(30, -0.1)]).any()


@given(st.lists(st.booleans(), max_size=60))
def test_a_stretch_is_within_the_steps_that_are_known(late: list[bool]) -> None:
    stretch = late_stretch(np.array(late, dtype=np.bool_))
    if stretch is not None:
        assert 0 < stretch.steps <= len(late) - stretch.over
        assert late[len(late) - stretch.over - 1]


def change(times: list[float], steps: int, over: int = 0) -> float | None:
    found = step_change(np.array(times), LateStretch(steps=steps, over=over))
    return None if found is None else found.gain_ratio


def test_a_fault_costs_at_most_what_steps_are_longer_since_it_began() -> None:
    assert change([0.8] * 20 + [1.0] * 5, 5) == pytest.approx(0.2)
    assert change([1.0] * 20 + [0.8] * 5, 5) == pytest.approx(-0.25)
    assert change([0.8] * 4 + [1.0] * 5, 5) is None
    assert change([0.8] * 5 + [1.0] * 5, 5) == pytest.approx(0.2)


@pytest.mark.parametrize("over", [1, 4, 10])
def test_a_fault_that_is_over_costs_what_its_own_steps_were_longer(over: int) -> None:
    ended = [0.8] * 20 + [1.0] * 8 + [0.8] * over
    assert change(ended, 8, over) == pytest.approx(0.2)
    # The newest steps alone would be of something else.
    assert over < 10 or (change(ended, 8) or 0.0) < 0.2


@given(
    step_time_s=st.lists(st.floats(0.1, 10) | st.just(math.nan), min_size=1, max_size=40),
    steps=st.integers(1, 40),
    over=st.integers(0, 12),
)
def test_the_change_of_any_steps_is_a_share_of_a_step_or_unknown(
    step_time_s: list[float], steps: int, over: int
) -> None:
    found = change(step_time_s, min(steps, len(step_time_s)), over)
    assert found is None or found <= 1


def test_what_made_steps_long_further_back_is_another_fault() -> None:
    assert change([1.0] * 30 + [0.8] * 8 + [1.0] * 5, 5) == pytest.approx(0.2)


@pytest.mark.parametrize(("healthy", "replayed", "found"), [(5, 0.2, 0.2), (4, 0.2, 0.0), (5, 0.0, 0.0)])
def test_steps_of_another_ranks_fault_are_not_what_a_fault_is_compared_with(
    healthy: int, replayed: float, found: float
) -> None:
    # The other one lasts for 25 steps, and ends when this one begins; 5 healthy steps are needed.
    step_time_s = np.array([0.8] * healthy + [1.0] * 25 + [1.0] * 10)
    others_late = np.arange(len(step_time_s)) >= healthy

    of_both = step_change(step_time_s, LateStretch(steps=10), others_late[2:], replayed_ratio=replayed)
    assert of_both is not None
    assert of_both.gain_ratio == pytest.approx(found)
    assert of_both.before_s == (0.8 if found else 1.0)
    alone = step_change(step_time_s, LateStretch(steps=10), replayed_ratio=replayed)
    assert alone is not None
    assert alone.gain_ratio == pytest.approx(0.0)


def test_another_rank_is_late_if_it_is_by_half_of_what_is_usual_of_this_one() -> None:
    own_s, other_s = np.full(30, 0.1), np.repeat([0.051, 0.049], 15)
    assert late_steps([other_s], [own_s]).tolist() == [True] * 15 + [False] * 15


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_latest_other_member_is_seen_by_how_much_it_comes_after_the_middle_one(ranks: int) -> None:
    waits_s = np.full((1, 2, ranks), 0.5)
    waits_s[0, 0, -1] = 0.2
    waits_s[0, 1, 0] = 0.2

    found = latest_excess_by_step(waits_s, np.array([0]))[0]
    assert found[0] == pytest.approx(0.3)
    assert found[1] <= 0.0
    assert latest_excess_by_step(waits_s[:, :, :1], np.array([0])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(("seen_later", "found"), [(0, 0.2), (5, 0.2), (15, 0.0)])
def test_a_fault_that_peers_are_seen_to_wait_for_a_few_steps_later_is_as_old_as_the_longer_steps(
    seen_later: int, found: float
) -> None:
    assert change([0.8] * 20 + [1.0] * (seen_later + 6), 6) == pytest.approx(found)


def test_with_short_steps_the_log_is_a_second_and_a_half_further_ahead() -> None:
    # 0.1 s each: 15 steps.
    assert change([0.08] * 20 + [0.1] * 26, 11) == pytest.approx(0.2)
    assert change([0.08] * 20 + [0.1] * 33, 11) == pytest.approx(0.0)


def test_of_a_long_fault_operations_of_a_fifth_of_its_steps_may_be_missing() -> None:
    assert change([0.8] * 20 + [1.0] * 50, 40) == pytest.approx(0.2)
    assert change([0.8] * 20 + [1.0] * 80, 40) == pytest.approx(0.0)


def test_a_change_has_the_error_of_the_steps_with_the_fault_and_not_of_those_after_it() -> None:
    even = step_change(np.array([0.8] * 9 + [1.0] * 5), LateStretch(steps=5))
    scattered = np.array([0.8] * 9 + [1.1, 1.2, 0.9, 1.0, 1.0] + [0.8] * 3)
    uneven = step_change(scattered, LateStretch(steps=5, over=3))
    assert even is not None
    assert uneven is not None
    assert (even.before_s, even.since_s, even.error_ratio) == (0.8, 1.0, 0.0)
    assert (uneven.before_s, uneven.since_s) == (0.8, 1.0)
    assert 0.03 < uneven.error_ratio < 0.1
    # That of a gain is of the steps before, too.
    before = step_change(np.array([0.7, 0.8, 0.9] * 3 + [1.0] * 5), LateStretch(steps=5))
    assert before is not None
    assert (even.error_of_gain, before.error_ratio) == (0.0, 0.0)
    assert before.error_of_gain == pytest.approx(before.before_error_s)
    assert 0.02 < before.error_of_gain < 0.1
    assert uneven.error_of_gain == pytest.approx(0.8 * uneven.error_ratio)


def test_peers_have_the_same_stage_tensor_position_and_experts() -> None:
    def roles(**sizes: int) -> list[int]:
        layout = ParallelLayout(**sizes)
        ranks = np.arange(layout.world_size or 0)
        return roles_of(ranks, ranks // (len(ranks) // (layout.pp or 1)), layout).tolist()

    assert roles(world_size=4, tp=1, pp=1, dp=4) == [0, 0, 0, 0]
    assert roles(world_size=8, tp=2, pp=2, dp=2) == [0, 1, 0, 1, 2, 3, 2, 3]
    assert roles(world_size=4, tp=1, pp=1, dp=4, ep=4) == [0, 1, 2, 3]
    assert roles(world_size=4, tp=1, pp=1, dp=4, ep=2) == [0, 1, 0, 1]


def test_a_role_is_named_by_what_distinguishes_it_from_others() -> None:
    layout = ParallelLayout(world_size=8, tp=2, pp=2, dp=2)
    assert role_name(5, layout) == "stage 1, tensor rank 1"
    assert role_name(3, ParallelLayout(world_size=4, tp=1, dp=4, ep=2)) == "expert rank 1"
    assert role_name(3, ParallelLayout(world_size=4, dp=4)) == ""


def history(since: int, longer_s: float, waiting: list[float], *, before: int = 12) -> tuple[Floats, Floats]:
    """Step times and waits by rank, who in the newest steps wait so much of what these are longer."""
    steps = np.full(before + since, 1.0)
    steps[before:] += longer_s
    waited = np.full((len(steps), len(waiting)), 0.1)
    waited[before:] += longer_s * np.array(waiting)
    return steps, waited


def test_who_alone_does_not_wait_longer_is_slow_since_then() -> None:
    found = slow_since(*history(5, 0.25, [1.0, 1.0, 0.0, 1.0]))
    assert found is not None
    assert (found.place, found.steps) == (2, 5)
    assert found.gain_ratio == pytest.approx(0.2)


@pytest.mark.parametrize(("short", "over"), [(4, False), (5, True)])
def test_a_change_is_over_once_five_steps_are_nearer_to_those_before(short: int, over: bool) -> None:
    """Operations that show who was late in it may come later."""
    steps = np.array([0.5] * 10 + [0.64] * 8 + [0.54] * short)
    change = step_change(steps[:18], LateStretch(steps=8))
    assert change is not None
    assert is_over(steps, change) is over
    assert not is_over(np.array([0.5] * 20), StepChange(before_s=0.6, since_s=0.5, error_s=0.0))


def test_of_two_changes_the_larger_one_says_who_is_slow() -> None:
    """Steps became longer by little because of one rank, and then by far more because of another one."""
    steps, waited = history(10, 0.2, [0.0, 1.0, 1.0, 1.0])
    steps[-5:] += 0.4
    waited[-5:] += 0.4 * np.array([1.0, 1.0, 0.0, 1.0])
    found = slow_since(steps, waited)

    assert found is not None
    assert (found.place, found.steps) == (2, 5)


@pytest.mark.parametrize(
    ("since", "longer_s", "waiting"),
    [
        # All became slower: nobody waits longer.
        (5, 0.25, [0.0, 0.0, 0.0, 0.0]),
        # Two are late together, such as the first ranks of two tensor groups that read data.
        (5, 0.25, [0.0, 1.0, 0.0, 1.0]),
        # Hidden: others wait, but steps are as long as before.
        (5, 0.0, [1.0, 1.0, 0.0, 1.0]),
        # So little may be the temperature of GPUs.
        (5, 0.08, [1.0, 1.0, 0.0, 1.0]),
        # Three steps may be anything.
        (3, 0.25, [1.0, 1.0, 0.0, 1.0]),
        (5, 0.25, [0.0]),
    ],
)
def test_otherwise_nobody_became_slow(since: int, longer_s: float, waiting: list[float]) -> None:
    assert slow_since(*history(since, longer_s, waiting)) is None


def test_a_job_of_few_steps_has_no_past() -> None:
    assert slow_since(*history(4, 0.25, [1.0, 0.0], before=5)) is None
    assert slow_since(*history(4, 0.25, [1.0, 0.0, 1.0, 1.0], before=6)) is not None


def test_waits_of_too_few_steps_before_are_no_past() -> None:
    steps, waited = history(5, 0.25, [1.0, 1.0, 0.0, 1.0])
    # Of the eight before the last change that is looked at, four, and three.
    waited[:9] = np.nan
    assert slow_since(steps, waited) is not None
    waited[:10] = np.nan
    assert slow_since(steps, waited) is None


def test_of_two_ranks_it_takes_more_steps_than_of_four_to_rule_out_chance() -> None:
    def found(since: int, waiting: list[float]) -> bool:
        steps, waited = history(since, 0.25, waiting)
        steps[9] = 1.25
        return slow_since(steps, waited) is not None

    assert not found(4, [1.0, 0.0])
    assert found(5, [1.0, 0.0])
    assert found(4, [1.0, 0.0, 1.0, 1.0])


def test_four_longer_steps_in_which_ranks_are_late_in_turn_are_no_sign_of_a_change() -> None:
    """As in a tensor group of two whose hosts drift."""
    steps, waited = history(4, 0.25, [1.0, 0.0])
    assert slow_since(steps, waited) is not None
    waited[-3] = waited[-3, ::-1]
    assert slow_since(steps, waited) is None


@pytest.mark.parametrize(("longer_s", "since", "found"), [(0.18, 4, True), (0.17, 5, False), (0.17, 6, True)])
def test_by_less_than_15_percent_it_takes_6_steps(longer_s: float, since: int, found: bool) -> None:
    """Hosts of healthy stages have such stretches."""
    assert (slow_since(*history(since, longer_s, [1.0, 1.0, 0.0, 1.0])) is not None) is found


@pytest.mark.parametrize(
    ("longer_s", "before", "found"), [(0.24, 8, True), (0.24, 7, False), (0.26, 7, True)]
)
def test_of_a_job_that_began_a_moment_ago_by_less_than_20_percent(
    longer_s: float, before: int, found: bool
) -> None:
    """Its hosts become slower in the first steps."""
    waits = [1.0, 1.0, 0.0, 1.0]
    assert (slow_since(*history(4, longer_s, waits, before=before)) is not None) is found
    assert slow_since(*history(6, longer_s, waits, before=before)) is not None


@pytest.mark.parametrize(
    ("longer_s", "its_steps", "found"), [(0.25, 4, False), (0.25, 5, True), (0.17, 6, False), (0.17, 7, True)]
)
def test_it_is_the_rank_that_waits_least_in_most_of_the_steps(
    longer_s: float, its_steps: int, found: bool
) -> None:
    steps, waited = history(9, longer_s, [1.0, 0.6, 0.2, 1.0])
    # In the others one that waits long otherwise waits least.
    waited[-9 + its_steps :, 1] = 0.1
    waited[-9 : -9 + its_steps, 1] = 0.6
    result = slow_since(steps, waited)
    assert (result is not None and result.place == 2) is found


@pytest.mark.parametrize(
    ("scatter_s", "its_steps", "found"), [(0.034, 6, False), (0.034, 7, True), (0.02, 6, True)]
)
def test_of_a_job_that_scatters_it_must_be_the_same_rank_in_three_of_four_steps(
    scatter_s: float, its_steps: int, found: bool
) -> None:
    """Where steps are longer by less than 6 of their standard deviations."""
    steps, waited = history(9, 0.25, [1.0, 0.6, 0.2, 1.0])
    steps[:-9:2] += scatter_s
    steps[1:-9:2] -= scatter_s
    waited[-9 + its_steps :, 1] = 0.1
    waited[-9 : -9 + its_steps, 1] = 0.6
    assert (slow_since(steps, waited) is not None) is found


@pytest.mark.parametrize(
    ("waiting", "found"), [([1.9, 0.0], True), ([2.1, 0.0], False), ([2.1, 1.0, 0.0], True)]
)
def test_who_is_waited_for_far_longer_than_steps_became_longer_is_only_late_in_turn(
    waiting: list[float], found: bool
) -> None:
    """As in a tensor group: before, the others were late."""
    assert (slow_since(*history(6, 0.25, waiting)) is not None) is found


def test_one_pause_before_does_not_hide_who_became_slow() -> None:
    steps, waited = history(5, 0.25, [1.0, 1.0, 0.0, 1.0])
    steps[9] = 5.0
    assert slow_since(steps, waited) is not None
    steps[8] = 5.0
    assert slow_since(steps, waited) is None


def with_earlier(earlier: int, place: int, in_a_row: int = 99, short: int = 0) -> tuple[Floats, Floats]:
    """Long steps by rank 2 after 8 short ones, before which `earlier` steps were as long by `place`.

    `in_a_row` of these are followed by one of rank 2. So many others are short, by turns with two long ones.
    """
    steps, waited = history(5, 0.25, [1.0, 1.0, 0.0, 1.0], before=8)
    late = waited[-1].copy()
    late[[2, place]] = late[[place, 2]]
    rows = np.tile(late, (earlier, 1))
    rows[in_a_row :: in_a_row + 1] = waited[-1]
    times = np.full(earlier, steps[-1])
    times[2 : 3 * short : 3] = steps[0]
    return np.concatenate([times, steps]), np.concatenate([rows, waited])


@pytest.mark.parametrize(
    ("earlier", "short", "found"), [(7, 1, True), (8, 1, False), (20, 5, False), (20, 0, True)]
)
def test_a_few_short_steps_among_long_ones_are_no_past(earlier: int, short: int, found: bool) -> None:
    """Rank 2 did not become slow: it was as late before them, too, unless that was another fault of it."""
    assert (slow_since(*with_earlier(earlier, place=2, short=short)) is not None) is found


@pytest.mark.parametrize(("in_a_row", "found"), [(8, True), (7, False)])
def test_earlier_steps_that_another_rank_made_long_do_not_count(in_a_row: int, found: bool) -> None:
    assert (slow_since(*with_earlier(26, place=0, in_a_row=in_a_row, short=1)) is not None) is found


def test_steps_whose_waits_are_not_held_say_nothing() -> None:
    steps, waited = history(5, 0.25, [1.0, 1.0, 0.0, 1.0])
    waited[:12] = np.nan
    assert slow_since(steps, waited) is None


def stalling(at: list[int], ranks: list[int], *, steps: int = 30) -> tuple[Floats, Floats]:
    """Step times and waits of four ranks, of which one each is 0.6 s late at each of these steps."""
    lasted, waited = np.full(steps, 1.0), np.full((steps, 4), 0.05)
    for step, rank in zip(at, ranks, strict=True):
        lasted[step] += 0.6
        waited[step] += np.where(np.arange(4) == rank, 0.0, 0.6)
    return lasted, waited


def test_the_third_stall_at_an_equal_distance_names_the_rank_and_the_period() -> None:
    found = periodic_stalls(*stalling([19, 24, 29], [3, 3, 3]))
    assert found is not None
    assert (found.places, found.period_steps, found.stalls) == ((3,), 5, 3)
    assert found.gain_ratio == pytest.approx(0.12 / 1.12)
    assert periodic_stalls(*stalling([24, 29], [3, 3])) is None


def test_ranks_that_stall_together_are_named_up_to_half_of_all() -> None:
    """As in recording random139: ranks 0 and 2 of four, each time in the same step."""
    lasted, waited = stalling([19, 24, 29], [3, 3, 3])
    waited[[19, 24, 29], 1] = 0.05
    found = periodic_stalls(lasted, waited)
    assert found is not None
    assert (found.places, found.stalls, found.gain_ratio) == ((1, 3), 3, pytest.approx(0.12 / 1.12))
    # One that waits for some of it is none of them, nor is it one that waits for them.
    waited[24, 1] = 0.05 + 0.4 * 0.6
    assert periodic_stalls(lasted, waited) is None
    waited[[19, 29], 1] = waited[24, 1]
    assert periodic_stalls(lasted, waited) is None
    waited[[19, 24, 29], :2] = 0.05
    assert periodic_stalls(lasted, waited) is None


@pytest.mark.parametrize(
    ("at", "ranks"),
    [
        ([19, 24, 29], [3, 2, 3]),  # In turn.
        ([15, 24, 29], [3, 3, 3]),  # Not regular.
        ([27, 28, 29], [3, 3, 3]),  # Each step: that is slow, not stalling.
        ([25, 27, 29], [3, 3, 3]),  # A profiler of the job's own makes a few steps long.
        ([24, 27, 29], [3, 3, 3]),
        ([9, 14, 19], [3, 3, 3]),  # Over.
        ([19, 24, 29], [9, 9, 9]),  # All wait alike: nobody of them is late.
    ],
)
def test_other_long_steps_are_nobodys_stalls(at: list[int], ranks: list[int]) -> None:
    assert periodic_stalls(*stalling(at, ranks)) is None


def test_an_evaluation_in_the_step_of_the_first_stall_does_not_hide_the_later_ones() -> None:
    """As in recording lasting2: a step with both takes 2 s, and the others wait for less than half of it."""
    lasted, waited = stalling([9, 14, 19, 24, 29], [3, 3, 3, 3, 3])
    lasted[9] += 1.0
    found = periodic_stalls(lasted, waited)
    assert found is not None
    assert (found.places, found.period_steps, found.stalls) == ((3,), 5, 4)
    assert found.gain_ratio == pytest.approx(0.12 / 1.12)
    # It takes one more of them then, and where another rank is one of them nobody is named.
    assert periodic_stalls(lasted[:25], waited[:25]) is None
    another = waited.copy()
    another[19] = waited[19, ::-1]
    assert periodic_stalls(lasted, another) is None
    # Nor where they cost little beside that step, as in recording saved2.
    stalled = [14, 19, 24, 29]
    lasted[stalled], waited[stalled] = 1.0 + (lasted[stalled] - 1.0) / 2, waited[stalled] / 2
    assert periodic_stalls(lasted, waited) is None
    assert periodic_stalls(lasted[10:], waited[10:]) is not None


def test_a_stall_whose_waits_are_not_reported_yet_counts_by_its_time() -> None:
    lasted, waited = stalling([19, 24, 29], [3, 3, 3])
    waited[26:] = 0.05
    assert periodic_stalls(lasted, waited) is not None
    waited[22:] = 0.05
    assert periodic_stalls(lasted, waited) is None


def test_operations_that_come_two_steps_later_than_lines_of_the_log_show_the_same() -> None:
    lasted, waited = stalling([17, 22, 27], [3, 3, 3])
    later = np.roll(waited, 2, axis=0)
    assert periodic_stalls(lasted, later) == periodic_stalls(lasted, waited)


def test_stalls_from_a_quarter_of_a_step_on_count() -> None:
    steps = np.full(30, 1.0)
    steps[[19, 24, 29]] = 1.25
    assert stalled_steps(steps).tolist() == [0, 5, 10]
    steps[[19, 24, 29]] = 1.24
    assert not len(stalled_steps(steps))


def test_steps_that_scatter_as_much_before_are_no_sign_of_a_change() -> None:
    steps, waited = history(5, 0.4, [1.0, 1.0, 0.0, 1.0])
    steps[:12] = np.tile([0.9, 1.1], 6)
    assert slow_since(steps, waited) is None
    steps[:12] = np.tile([0.96, 1.04], 6)
    assert slow_since(steps, waited) is not None


def test_in_one_tensor_group_a_rank_that_was_waited_for_in_turn_before_is_named_by_what_it_does_itself() -> (
    None
):
    steps, waited = history(6, 0.4, [1.0, 0.0])
    # Before, the other one was late now and then, and steps scattered by that.
    late = np.resize([0.0, 0.3, 0.05, 0.25, 0.1, 0.3], len(steps) - 6)
    steps[:-6] += late
    waited[:-6, 1] += late
    assert slow_since(steps, waited) is None
    found = slow_since(steps, waited, own_times=True)
    assert found is not None
    assert (found.place, found.steps) == (1, 6)
    assert found.gain_ratio == pytest.approx(1 - np.median(steps[-14:-6]) / 1.4)


def test_what_scattered_as_much_by_itself_before_is_no_sign_of_a_change() -> None:
    steps, waited = history(6, 0.4, [1.0, 0.0])
    steps[:-6] += np.resize([0.0, 0.3, 0.05, 0.25, 0.1, 0.3], len(steps) - 6)
    assert slow_since(steps, waited, own_times=True) is None
    # Nor where it is waited for no longer than before.
    steps, waited = history(6, 0.4, [0.0, 0.0])
    assert slow_since(steps, waited, own_times=True) is None
