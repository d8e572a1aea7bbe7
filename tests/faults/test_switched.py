"""Blocks with perfd and without are compared within each round."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu.switched import added, document, plan, rounds_of


def block(*, on: bool, slower: float = 1.0) -> dict[str, Any]:
    step_s, small_s = (1.01, 11e-6) if on else (1.0, 10e-6)
    return {
        "on": on, "steps_s": [step_s * slower, step_s * slower, 9.0], "small_s": small_s, "recorded": 7 * on,
    }  # fmt: skip


def test_each_round_goes_both_ways_in_an_order_that_changes() -> None:
    blocks = plan(20)

    orders = [tuple(blocks[at : at + 2]) for at in range(0, len(blocks), 2)]
    assert len(orders) == 21
    assert set(orders) == {(True, False), (False, True)}


def test_the_first_round_and_one_that_was_cut_do_not_count() -> None:
    slow = [block(on=True, slower=5.0), block(on=False, slower=5.0)]

    (only,) = rounds_of([*slow, block(on=False), block(on=True), block(on=True)])

    assert (only.on_step_s, only.off_step_s) == (1.01, 1.0)
    with pytest.raises(ValueError, match="no round"):
        document([*slow, block(on=True)])


def test_a_job_that_slows_down_from_round_to_round_hides_no_difference() -> None:
    slows = (9.0, 1.0, 1.5, 2.0)
    found = document([block(on=on, slower=slow) for slow in slows for on in (False, True)])

    assert found["rounds"] == 3
    assert found["added_step_ratio"]["median"] == pytest.approx(0.01)
    assert found["added_small_all_reduce_s"]["median"] == pytest.approx(1e-6)
    assert (found["recorded_operations"], found["recorded_operations_off"]) == (28, 0)


def test_the_interval_holds_the_median_and_narrows_with_more_rounds() -> None:
    few, many = added([0.0, 1.0, 2.0, 3.0, 4.0]), added([0.0, 1.0, 2.0, 3.0, 4.0] * 40)

    assert few.low <= few.median <= few.high
    assert few.median == many.median == 2.0
    assert many.high - many.low < few.high - few.low
