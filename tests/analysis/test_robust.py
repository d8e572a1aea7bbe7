"""Robust statistics with absent values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfd.analysis.data.robust_stats import (
    highest,
    mean,
    median,
    median_of,
    percentile_of,
    plain_median,
    plain_quantile,
    ratio,
    sigma_of,
)

MAYBE = st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")))


@given(arrays(np.float64, (7, 5), elements=MAYBE), st.sampled_from([0, 1]))
def test_median_and_mean_are_those_of_what_is_known(values, axis):
    rows = np.moveaxis(values, axis, -1)
    for row, middle, average in zip(rows, median(values, axis=axis), mean(values, axis=axis), strict=True):
        known = row[~np.isnan(row)]
        if len(known):
            assert middle == pytest.approx(np.median(known))
            assert average == pytest.approx(np.mean(known), abs=1e-6)
        else:
            assert math.isnan(middle)
            assert math.isnan(average)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
def test_a_plain_median_is_numpys_to_the_last_bit(count: int) -> None:
    for values in np.random.default_rng(count).lognormal(size=(200, count)):
        assert plain_median(values) == np.median(values)
    assert math.isnan(plain_median(np.append(np.ones(count), math.nan)))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 10, 20])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_a_plain_quantile_is_numpys_to_the_last_bit(count: int, share: float) -> None:
    for values in np.random.default_rng(count).lognormal(size=(200, count)):
        assert plain_quantile(values, share) == np.quantile(values, share)


def test_nothing_known_is_none_and_never_zero():
    nothing = np.full(3, np.nan)
    assert median_of(nothing) is None
    assert median_of(np.empty(0)) is None
    assert percentile_of(nothing, 95) is None
    assert sigma_of(nothing) is None
    assert sigma_of(np.empty(0)) is None
    assert math.isnan(plain_median(np.empty(0)))
    assert median(np.empty((0, 3)), axis=0).tolist() == pytest.approx([math.nan] * 3, nan_ok=True)


def test_sigma_bears_an_outlier():
    values = np.append(np.random.default_rng(1).normal(10, 1, 1000), [1e6] * 10)
    assert sigma_of(values) == pytest.approx(1, rel=0.1)


def test_a_ratio_by_nothing_is_unknown():
    assert ratio(1.0, 0.0) is None
    assert ratio(None, 2.0) is None
    assert ratio(1.0, None) is None
    assert ratio(1.0, 4.0) == 0.25


@pytest.mark.parametrize("length", range(1, 18))
def test_the_median_of_many_short_rows_is_that_of_each_row_alone(length: int) -> None:
    random = np.random.default_rng(length)
    rows = np.round(random.normal(size=(5000, length)), 1)
    rows[random.random(rows.shape) < 0.2] = np.nan
    alone = [float(np.median(known)) if len(known := row[~np.isnan(row)]) else np.nan for row in rows]
    np.testing.assert_allclose(median(rows, axis=1), alone, rtol=1e-15, atol=1e-15)
    filled = np.nan_to_num(rows)
    np.testing.assert_allclose(median(filled, axis=1), np.median(filled, axis=1), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("count", [1, 7, 100, 200])
def test_the_highest_are_those_that_a_stable_sort_puts_first(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 20, 100).astype(float)
    expected = np.argsort(-values, kind="stable")[:count]
    np.testing.assert_array_equal(highest(values, count), expected)
