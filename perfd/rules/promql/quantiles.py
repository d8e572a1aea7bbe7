"""Quantiles as Prometheus defines them, over samples and over series."""

from __future__ import annotations

import math

import numpy as np

from perfd.rules.promql.evaluation import Floats


def quantiles(fraction: float, values: Floats) -> Floats:
    """The quantile of each column, linear between ranks; NaN counts as the smallest value.

    A fraction below 0 gives -Inf, above 1 +Inf, NaN gives NaN (promql/quantile.go).
    """
    count, columns = values.shape
    if math.isnan(fraction) or count == 0:
        return np.full(columns, np.nan)
    if not 0 <= fraction <= 1:
        return np.full(columns, math.copysign(math.inf, fraction))
    # numpy sorts NaN to the end, Prometheus to the beginning.
    in_order = np.sort(values, axis=0)
    missing = np.isnan(in_order).sum(axis=0)
    if missing.any():
        ranks = (np.arange(count)[:, None] - missing) % count
        in_order = np.take_along_axis(in_order, ranks, axis=0)
    rank = fraction * (count - 1)
    lower = math.floor(rank)
    upper = min(count - 1, lower + 1)
    weight = rank - lower
    result: Floats = in_order[lower] * (1 - weight) + in_order[upper] * weight
    return result
