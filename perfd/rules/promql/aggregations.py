"""Aggregations over groups of series."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import METRIC_NAME_LABEL
from perfd.rules.promql.instant_vectors import Floats, Instant, ScalarNode, Vector, VectorNode, empty
from perfd.rules.promql.range_vectors import quantiles
from perfd.rules.promql.series_keys import EvaluationError, Keys, Remembered

Groups = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Grouping:
    """`by (labels)` or `without (labels)`; `by ()` makes one group of all."""

    labels: frozenset[str]
    without: bool = False

    def key(self, key: SeriesKey) -> SeriesKey:
        """The group of a series."""
        kept = tuple(pair for pair in key.labels if (pair[0] in self.labels) != self.without)
        named = METRIC_NAME_LABEL in self.labels and not self.without
        return SeriesKey(key.name if named else "", kept)


@dataclass(frozen=True, slots=True)
class _Grouped:
    """The groups of some keys: `group[i]` is the place in `keys` of the group of key i."""

    keys: Keys
    group: Groups


def _grouped(keys: Keys, grouping: Grouping) -> _Grouped:
    places: dict[SeriesKey, int] = {}
    group = [places.setdefault(grouping.key(key), len(places)) for key in keys.items]
    return _Grouped(Keys(places), np.array(group, dtype=np.intp))


def _sum(values: Floats, group: Groups, count: int) -> Floats:
    return np.bincount(group, weights=values, minlength=count).astype(np.float64, copy=False)


def _average(values: Floats, group: Groups, count: int) -> Floats:
    average: Floats = _sum(values, group, count) / np.bincount(group, minlength=count)
    return average


def _variance(values: Floats, group: Groups, count: int) -> Floats:
    variance = _average((values - _average(values, group, count)[group]) ** 2, group, count)
    # One value does not vary, not even when it is infinite.
    variance[np.bincount(group, minlength=count) == 1] = 0.0
    return variance


def _smallest(values: Floats, group: Groups, count: int) -> Floats:
    result = np.full(count, np.nan)
    np.fmin.at(result, group, values)
    return result


def _largest(values: Floats, group: Groups, count: int) -> Floats:
    result = np.full(count, np.nan)
    np.fmax.at(result, group, values)
    return result


SIMPLE: Mapping[str, Callable[[Floats, Groups, int], Floats]] = {
    "sum": _sum,
    "avg": _average,
    "min": _smallest,
    "max": _largest,
    "count": lambda _, group, count: np.bincount(group, minlength=count).astype(np.float64),
    "group": lambda _values, _group, count: np.ones(count),
    "stdvar": _variance,
    "stddev": lambda values, group, count: np.sqrt(_variance(values, group, count)),
}
"""By name, those without a parameter."""


def aggregation(
    name: str, argument: VectorNode, grouping: Grouping, parameter: ScalarNode | None
) -> VectorNode:
    """`sum`, `avg` and the others that give one value for each group."""
    grouped_keys = Remembered(lambda keys: _grouped(keys, grouping))

    def vector(at: Instant) -> Vector:
        found = argument(at)
        grouped = grouped_keys(found.keys)
        count = len(grouped.keys)
        group = grouped.group[found.present]
        values = found.values[found.present]
        present = np.bincount(group, minlength=count) > 0
        if parameter is not None:
            result = _group_quantiles(parameter(at), values, group, count)
        else:
            result = SIMPLE[name](values, group, count)
        return Vector(grouped.keys, result, present)

    return vector


def _group_quantiles(fraction: float, values: Floats, group: Groups, count: int) -> Floats:
    result = np.full(count, np.nan)
    for number in np.unique(group):
        result[number] = quantiles(fraction, values[group == number][:, None])[0]
    return result


def top_or_bottom(name: str, argument: VectorNode, grouping: Grouping, parameter: ScalarNode) -> VectorNode:
    """`topk` and `bottomk`: the series themselves, those with the k largest or smallest values of a group."""
    grouped_keys = Remembered(lambda keys: _grouped(keys, grouping))

    def vector(at: Instant) -> Vector:
        found = argument(at)
        wanted = parameter(at)
        if not math.isfinite(wanted):
            raise EvaluationError(f"{wanted} is not a number of series")
        if wanted < 1:
            return empty()
        group = grouped_keys(found.keys).group
        present = np.zeros(len(found.keys), dtype=bool)
        for number in np.unique(group[found.present]):
            members = np.flatnonzero(found.present & (group == number))
            ranked = -found.values[members] if name == "topk" else found.values[members]
            # The first of equals comes first, and NaN last.
            present[members[np.argsort(ranked, kind="stable")][: int(wanted)]] = True
        return Vector(found.keys, found.values, present)

    return vector
