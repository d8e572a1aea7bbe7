"""Kills, stops and full disks, from a seed: nothing acknowledged is lost."""

import pytest

from benchmarks.chaos import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_is_stored_whatever_happens(seed):
    result = run(20.0, 3, seed, flips=False)
    assert sum(result.faults.values()) >= 2
    assert result.sent >= 200
    assert result.lost == 0
    assert result.stored + result.dropped == result.sent


@pytest.mark.slow
def test_flipped_bits_in_the_history_cost_at_most_what_is_on_their_pages():
    result = run(30.0, 3, 3)
    assert result.faults["flip"] >= 1
    assert result.lost == 0
    assert result.uncounted == 0
    assert result.lost_with_pages <= result.on_flipped_pages < result.sent
