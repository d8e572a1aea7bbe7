"""Range vectors: samples of an interval, and their functions as in Prometheus 2.42 (promql/functions.go)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.rules.label_matchers import MatcherSet
from perfd.rules.promql.instant_vectors import (
    Floats,
    Instant,
    MatchedSeries,
    ScalarNode,
    Vector,
    VectorNode,
)
from perfd.rules.promql.series_keys import Keys, Remembered, without_name
from perfd.rules.promql.vector_matching import Mask
from perfd.rules.series_store import Block, Read, Times, is_value


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of some series that all have the same times: rows are times."""

    times_ms: Times
    values: Block
    places: slice | NDArray[np.intp]
    """Which of the selector's keys these are."""


class RangeSelector:
    """`name{...}[d] offset d`: all samples of an interval that is closed at both ends."""

    def __init__(self, selection: MatcherSet, range_ms: int, offset_ms: int) -> None:
        self.selection = selection
        self.range_ms = range_ms
        self.offset_ms = offset_ms
        self._matched = MatchedSeries(selection)

    def read(self) -> Read:
        """What the store has to keep for this selector."""
        return Read(self.selection, max(0, self.range_ms + self.offset_ms))

    def samples(self, at: Instant) -> tuple[Keys, list[Samples]]:
        """All matched series, and their samples; a series without any is in no part."""
        matched = self._matched
        matched.refresh(at.store)
        end_ms = at.time_ms - self.offset_ms
        found: list[Samples] = []
        for part in matched.parts:
            times, block = part.table.window(end_ms - self.range_ms, end_ms, part.columns)
            if len(times):
                found.extend(_complete(times, block, part.places))
        return matched.keys, found


def _complete(times: Times, block: Block, places: slice) -> Iterator[Samples]:
    """Splits a block by which rows hold samples, so that no part has a hole."""
    valid = is_value(block)
    if valid.all():
        yield Samples(times, block, places)
        return
    first, members = _patterns(valid)
    for number, column in enumerate(first):
        rows = valid[:, column]
        if rows.any():
            columns = np.flatnonzero(members == number)
            yield Samples(times[rows], block[np.ix_(rows, columns)], columns + places.start)


def _patterns(valid: Mask) -> tuple[Sequence[int], NDArray[np.intp]]:
    """The first column of each pattern of rows, and which pattern each column has."""
    if (valid == valid[:, :1]).all():
        return [0], np.zeros(valid.shape[1], np.intp)
    # As bytes: `np.unique` compares columns of booleans element by element.
    packed = np.ascontiguousarray(np.packbits(valid, axis=0).T)
    _, first, members = np.unique(
        packed.view(np.dtype((np.void, packed.shape[1]))).ravel(), return_index=True, return_inverse=True
    )
    return first.tolist(), members.reshape(-1)


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


@dataclass(frozen=True, slots=True)
class RangeWindow:
    """The interval that a range covers, and the number that the function may take."""

    start_ms: int
    end_ms: int
    parameter: float

    @property
    def length_s(self) -> float:
        """How long the range is."""
        return (self.end_ms - self.start_ms) / 1000


RangeFunction = Callable[[Samples, RangeWindow], "Floats | None"]
"""Gives a value for each column, or None when there are too few samples for one."""


def _extrapolated(samples: Samples, window: RangeWindow, *, counter: bool, rate: bool) -> Floats | None:
    """What a counter (or gauge) rose over the window, as `rate`, `increase` and `delta` define it.

    The rise between first and last sample is extended to the window's ends, or by
    half a mean interval where the end is too far away, and not below a counter's zero.
    """
    values, times = samples.values, samples.times_ms
    if len(times) < 2:
        return None
    rise: Floats = values[-1] - values[0]
    if counter:
        rise = rise + np.where(values[1:] < values[:-1], values[:-1], 0.0).sum(axis=0)
    to_start_s = np.full(len(rise), (times[0] - window.start_ms) / 1000)
    to_end_s = (window.end_ms - times[-1]) / 1000
    sampled_s = (times[-1] - times[0]) / 1000
    mean_interval_s = sampled_s / (len(times) - 1)
    if counter:
        since_zero_s = sampled_s * (values[0] / rise)
        clamped = (rise > 0) & (values[0] >= 0) & (since_zero_s < to_start_s)
        to_start_s = np.where(clamped, since_zero_s, to_start_s)
    threshold_s = mean_interval_s * 1.1
    extended_s = sampled_s + np.where(to_start_s < threshold_s, to_start_s, mean_interval_s / 2)
    extended_s = extended_s + (to_end_s if to_end_s < threshold_s else mean_interval_s / 2)
    factor = extended_s / sampled_s
    if rate:
        factor = factor / window.length_s
    result: Floats = rise * factor
    return result


def _last_two(samples: Samples, *, rate: bool) -> Floats | None:
    """The change between the last two samples; with `rate`, of a counter and per second."""
    if len(samples.times_ms) < 2:
        return None
    before, last = samples.values[-2], samples.values[-1]
    change: Floats = np.where(last < before, last, last - before) if rate else last - before
    return change / ((samples.times_ms[-1] - samples.times_ms[-2]) / 1000) if rate else change


def _slope(samples: Samples, _: RangeWindow) -> Floats | None:
    """The slope of the least-squares line, per second."""
    if len(samples.times_ms) < 2:
        return None
    values = samples.values
    x = ((samples.times_ms - samples.times_ms[0]) / 1000)[:, None]
    count = len(x)
    covariance = (x * values).sum(axis=0) - x.sum() * values.sum(axis=0) / count
    variance = (x * x).sum() - x.sum() ** 2 / count
    slope: Floats = covariance / variance
    constant = (values == values[0]).all(axis=0)
    slope[constant] = np.where(np.isinf(values[0][constant]), np.nan, 0.0)
    return slope


def _changes(samples: Samples, _: RangeWindow) -> Floats:
    before, after = samples.values[:-1], samples.values[1:]
    both_nan = np.isnan(before) & np.isnan(after)
    return _times((before != after) & ~both_nan)


def _resets(samples: Samples, _: RangeWindow) -> Floats:
    return _times(samples.values[1:] < samples.values[:-1])


def _times(happened: Mask) -> Floats:
    times: Floats = happened.sum(axis=0).astype(np.float64)
    return times


def _count(samples: Samples, _: RangeWindow) -> Floats:
    return np.full(samples.values.shape[1], float(len(samples.times_ms)))


def _quantile(samples: Samples, window: RangeWindow) -> Floats:
    return quantiles(window.parameter, samples.values)


FUNCTIONS: Mapping[str, RangeFunction] = {
    "rate": lambda s, w: _extrapolated(s, w, counter=True, rate=True),
    "increase": lambda s, w: _extrapolated(s, w, counter=True, rate=False),
    "delta": lambda s, w: _extrapolated(s, w, counter=False, rate=False),
    "irate": lambda s, _: _last_two(s, rate=True),
    "idelta": lambda s, _: _last_two(s, rate=False),
    "deriv": _slope,
    "changes": _changes,
    "resets": _resets,
    "avg_over_time": lambda s, _: s.values.mean(axis=0),
    "sum_over_time": lambda s, _: s.values.sum(axis=0),
    "min_over_time": lambda s, _: np.fmin.reduce(s.values, axis=0),
    "max_over_time": lambda s, _: np.fmax.reduce(s.values, axis=0),
    "count_over_time": _count,
    "stddev_over_time": lambda s, _: s.values.std(axis=0),
    "stdvar_over_time": lambda s, _: s.values.var(axis=0),
    "quantile_over_time": _quantile,
    "last_over_time": lambda s, _: s.values[-1],
    "present_over_time": lambda s, _: np.ones(s.values.shape[1]),
}
"""By name; `absent_over_time` is not a function of each series, and lives with `absent`."""


def over_range(name: str, argument: RangeSelector, parameter: ScalarNode | None) -> VectorNode:
    """A function of the range of each series."""
    function = FUNCTIONS[name]
    unnamed = Remembered(without_name)

    def vector(at: Instant) -> Vector:
        end_ms = at.time_ms - argument.offset_ms
        number = parameter(at) if parameter else 0.0
        window = RangeWindow(end_ms - argument.range_ms, end_ms, number)
        keys, parts = argument.samples(at)
        values, present = np.full(len(keys), np.nan), np.zeros(len(keys), dtype=bool)
        for samples in parts:
            result = function(samples, window)
            if result is not None:
                values[samples.places] = result
                present[samples.places] = True
        return Vector(keys if name == "last_over_time" else unnamed(keys), values, present).checked()

    return vector
