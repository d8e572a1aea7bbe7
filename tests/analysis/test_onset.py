"""A rank that has just become slow is told from chance in a few steps, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from perfd.analysis.collectives.late_rank_cost import Lateness
from perfd.analysis.collectives.newly_slow_rank import onset

STEP_S = 0.5


def by_step(at_least: np.ndarray) -> Lateness:
    """Shares of time that are lost by each rank in each step, (ranks, steps)."""
    return Lateness(at_least=at_least, at_most=at_least, among=at_least, waits=np.zeros_like(at_least))


def quiet(ranks: int, steps: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 0.02, (ranks, steps))


def peers(ranks: int) -> np.ndarray:
    return np.full(ranks, ranks)


@pytest.mark.parametrize(("ranks", "before", "steps"), [(8, 13, 4), (2, 21, 5), (64, 9, 4)])
def test_so_many_steps_suffice_after_quiet_ones_and_one_less_does_not(ranks, before, steps):
    lost = np.concatenate([quiet(ranks, before), quiet(ranks, steps)], axis=1)
    lost[1, before:] = 0.2
    found = onset(by_step(lost), peers(ranks), STEP_S)
    assert found is not None
    assert found.at_least.shape == (ranks, steps)
    assert found.caused()[1] == pytest.approx(0.2)
    assert onset(by_step(lost[:, :-1]), peers(ranks), STEP_S) is None


def test_a_pause_before_costs_one_step_more():
    lost = quiet(8, 18)
    lost[3, 6] = 0.5
    lost[1, 14:] = 0.2
    assert onset(by_step(lost), peers(8), STEP_S) is None
    assert onset(by_step(np.c_[lost, lost[:, -1]]), peers(8), STEP_S) is not None


def test_long_steps_need_fewer_since_so_many_hours_hold_fewer_of_them():
    lost = quiet(8, 14)
    lost[1, 10:] = 0.2
    assert onset(by_step(lost), peers(8), 0.5) is None
    assert onset(by_step(lost), peers(8), 2.0) is not None


def test_who_is_late_by_little_or_in_turn_is_not_named():
    little, in_turn = quiet(8, 40), quiet(8, 40)
    little[1, 30:] = 0.04
    in_turn[np.arange(10) % 8, np.arange(30, 40)] = 0.3
    assert onset(by_step(little), peers(8), STEP_S) is None
    assert onset(by_step(in_turn), peers(8), STEP_S) is None


def test_many_that_begin_to_be_late_at_once_hide_the_one_that_is_always_among_them():
    lost = quiet(8, 25)
    lost[:, 20:] = 0.2
    assert onset(by_step(lost), peers(8), STEP_S) is None


def test_steps_that_nobody_knows_do_not_count():
    lost = quiet(8, 40)
    lost[1, 35:] = 0.2
    lost[:, [3, 36, 39]] = np.nan
    found = onset(by_step(lost), peers(8), STEP_S)
    assert found is None
    lost[1, 34] = 0.2
    found = onset(by_step(lost), peers(8), STEP_S)
    assert found is not None
    assert np.isfinite(found.at_least).all()
    assert onset(by_step(np.full((8, 40), np.nan)), peers(8), STEP_S) is None


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_steps_with_heavy_tails_raise_no_alarm_at_any_look(ranks):
    random = np.random.default_rng(ranks)
    lost = 0.03 * random.standard_cauchy((ranks, 4000)).clip(-20, 20)
    looks = (lost[:, max(0, end - 40) : end] for end in range(20, lost.shape[1]))
    assert not any(onset(by_step(look), peers(ranks), STEP_S) for look in looks)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_was_reported_stays_reported_until_hardly_a_step_before_is_known(ranks):
    for since in range(6, 38):
        lost = quiet(ranks, 40)
        lost[1, 40 - since :] = 0.2
        assert onset(by_step(lost), peers(ranks), 0.1) is not None, since


def after_another_fault(others_steps: int, own_steps: int) -> np.ndarray:
    """Rank 0 is late at last, by less than rank 1 was a few steps ago."""
    lost = quiet(2, 40)
    lost[0, 40 - own_steps :] = 0.15
    lost[1, 30 - others_steps : 30] = 0.17
    return lost


@pytest.mark.parametrize(("others_steps", "found"), [(8, True), (7, False)])
def test_steps_of_another_ranks_fault_hide_no_rank_that_becomes_late_after_it(others_steps, found):
    lost = after_another_fault(others_steps, 6)
    assert (onset(by_step(lost), peers(2), STEP_S) is not None) == found
    # What comes and goes is no fault of another rank.
    lost[1, 22:30:2] = 0.0
    assert onset(by_step(lost), peers(2), STEP_S) is None
