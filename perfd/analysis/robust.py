"""Statistics that bear outliers and absent values; NaN is absent and never counts as a number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.tables import Floats

MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to the standard deviation of a normal distribution."""
MEDIAN_ERROR = 1.2533
"""The standard error of a median by that of a mean, for a normal distribution."""


def median(values: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """The median over one axis of what is known; NaN where nothing is."""
    # Sorting whole rows in memory's order is several times faster than numpy's own
    # median, and puts NaN last, so that the known values are a prefix of known length.
    rows = np.sort(np.ascontiguousarray(np.moveaxis(values, axis, -1)), axis=-1)
    if not rows.shape[-1]:
        return np.full(rows.shape[:-1], np.nan)
    known = (~np.isnan(rows)).sum(axis=-1, keepdims=True)
    low = np.take_along_axis(rows, np.maximum(known - 1, 0) // 2, -1)
    high = np.take_along_axis(rows, np.minimum(known // 2, rows.shape[-1] - 1), -1)
    middle = np.where(known > 0, low + (high - low) / 2, np.nan)
    return np.asarray(middle[..., 0])


def mean(values: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """The mean over one axis of what is known; NaN where nothing is."""
    absent = np.isnan(values)
    known = values.shape[axis] - absent.sum(axis=axis)
    total = np.where(absent, 0.0, values).sum(axis=axis)
    return np.asarray(np.where(known > 0, total / np.maximum(known, 1), np.nan))


def median_of(values: Floats) -> float | None:
    """The median of one column, or None when nothing in it is known."""
    return known(float(median(values))) if len(values) else None


def percentile_of(values: Floats, percent: float) -> float | None:
    """A percentile of one column (linear between neighbours), or None when nothing is known."""
    finite = values[np.isfinite(values)]
    return float(np.percentile(finite, percent)) if len(finite) else None


def sigma_of(values: Floats) -> float | None:
    """The spread of one column as a robust standard deviation, or None when nothing is known."""
    return known(MAD_TO_SIGMA * float(median(np.abs(values - median(values))))) if len(values) else None


def known(value: float | None) -> float | None:
    """The value, or None when it is absent or not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """One known number by another; None when either is unknown or the second is not positive."""
    if numerator is None or denominator is None or not denominator > 0:
        return None
    return known(numerator / denominator)
