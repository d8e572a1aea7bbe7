"""Plugins that take turns in one job are compared within each round."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu.plugins_in_turn import added, compared, plan, rounds_of

ENVIRONMENTS = {"off": {"A": "0"}, "perfd": {}, "inspector": {"A": "2"}}


def told(mode: str, step_s: float, small_s: float) -> dict[str, Any]:
    return {"mode": mode, "steps_s": [step_s, step_s, 9.0], "small_s": small_s, "recorded": 7}


def a_round(slower: float = 1.0) -> list[dict[str, Any]]:
    return [
        told("perfd", 1.01 * slower, 11e-6),
        told("off", 1.0 * slower, 10e-6),
        told("inspector", 1.02 * slower, 13e-6),
    ]


def test_each_round_has_every_mode_once_in_an_order_that_changes():
    blocks = plan(list(ENVIRONMENTS), 20, {"steps": 3}, ENVIRONMENTS)["blocks"]

    orders = [tuple(block["mode"] for block in blocks[at : at + 3]) for at in range(0, len(blocks), 3)]
    assert len(orders) == 21
    assert all(set(order) == set(ENVIRONMENTS) for order in orders)
    assert len(set(orders)) > 3
    assert all(block["environment"] == ENVIRONMENTS[block["mode"]] for block in blocks)


def test_the_first_round_and_one_that_was_cut_do_not_count():
    rounds = rounds_of([*a_round(5.0), *a_round(), *a_round()[:2]], 3)

    (only,) = rounds
    assert only["off"].step_s == 1.0


def test_a_job_that_slows_down_from_round_to_round_hides_no_difference():
    rounds = rounds_of([*a_round(), *a_round(), *a_round(1.5), *a_round(2.0)], 3)

    found = compared(rounds)

    assert found["perfd against off"]["step_ratio"]["median"] == pytest.approx(0.01)
    assert found["inspector against perfd"]["step_ratio"]["median"] == pytest.approx(1.02 / 1.01 - 1)
    assert found["inspector against off"]["small_all_reduce_us"]["median"] == pytest.approx(3.0)


def test_the_interval_holds_the_median_and_narrows_with_more_rounds():
    few, many = added([0.0, 1.0, 2.0, 3.0, 4.0]), added([0.0, 1.0, 2.0, 3.0, 4.0] * 40)

    assert few.low <= few.median <= few.high
    assert few.median == many.median == 2.0
    assert many.high - many.low < few.high - few.low
