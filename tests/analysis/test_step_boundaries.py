"""How many micro-batches make a step, by the pauses between them."""

from __future__ import annotations

import numpy as np
import pytest

from perfd.analysis.operations.step_boundaries import micro_batches_by_gathers, micro_batches_of


@pytest.mark.parametrize("count", [2, 3, 7, 16])
@pytest.mark.parametrize("more", [0, 1])
def test_a_step_shows_where_a_tenth_of_the_pauses_is_out_of_place(count: int, more: int) -> None:
    rng = np.random.default_rng(count)
    pauses_us = rng.normal(1_000, 10, 40 * count + more)
    last = count // 2
    ends = np.arange(len(pauses_us)) % count == last
    pauses_us[ends] += 5_000
    # One in twelve of either is as the others are: a loss is printed, or the optimizer skips a step.
    pauses_us[rng.choice(np.flatnonzero(~ends), len(pauses_us) // 12 - ends.sum() // 12, replace=False)] += (
        6_000
    )
    pauses_us[rng.choice(np.flatnonzero(ends), ends.sum() // 12, replace=False)] = 900
    leads_us = np.full(len(pauses_us), 20_000.0)

    assert micro_batches_of(pauses_us, leads_us, each_us=10_000) == (count, last)
    assert micro_batches_by_gathers(pauses_us, leads_us) == (count, last)


def test_pauses_that_differ_by_chance_show_no_step() -> None:
    pauses_us = np.random.default_rng(1).normal(1_000, 300, 1_000)
    leads_us = np.full(1_000, 20_000.0)

    assert micro_batches_of(pauses_us, leads_us, each_us=10_000) is None
    assert micro_batches_by_gathers(pauses_us, leads_us) is None
