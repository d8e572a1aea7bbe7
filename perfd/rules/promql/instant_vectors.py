"""Instant vectors: what an expression evaluates to, the selectors that read them, the operators between them.

A vector is one value for each of many series, with the series stored separately from the values: the set of
series changes rarely, the values all the time. Every operator therefore works on arrays over a fixed set of
keys with a mask of those that are present, and computes names, groups and matches only when the set of keys
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import MatcherSet
from perfd.rules.promql.series_keys import EvaluationError, Keys, Remembered, describe, without_name
from perfd.rules.promql.vector_matching import (
    Groups,
    Mask,
    Pairs,
    VectorMatching,
    common_groups,
    refuse_two,
    the_one_of_each,
)
from perfd.rules.series_store import LOOKBACK_MS, Block, Columns, Read, SampleMatrix, SeriesStore, Times

Floats: TypeAlias = Block

# What operators do to numbers: as IEEE 754 says, never an exception.
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
}
_COMPARISON: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
COMPARISONS = frozenset(_COMPARISON)
SET_OPERATORS = frozenset({"and", "or", "unless"})


@dataclass(frozen=True, slots=True)
class Vector:
    """A value for each key; what is under a false `present` has no meaning."""

    keys: Keys
    values: Floats
    present: Mask

    def samples(self) -> list[tuple[SeriesKey, float]]:
        """What is present, as pairs."""
        return [(self.keys.items[i], float(self.values[i])) for i in np.flatnonzero(self.present)]

    def checked(self) -> Vector:
        """The vector itself; raises `EvaluationError` when it holds a series twice."""
        if self.keys.repeated:
            counts = Counter(self.keys.items[i] for i in np.flatnonzero(self.present))
            for key, count in counts.items():
                if count > 1:
                    raise EvaluationError(f"two results have the same labels: {describe(key)}")
        return self


NO_KEYS = Keys(())


def empty() -> Vector:
    """The vector of no series."""
    return Vector(NO_KEYS, np.zeros(0), np.zeros(0, dtype=bool))


@dataclass(frozen=True, slots=True)
class Instant:
    """The series and the time of an evaluation."""

    store: SeriesStore
    time_ms: int


VectorNode: TypeAlias = Callable[[Instant], Vector]
"""A compiled expression: gives a value for each of some series at an instant.

It raises `EvaluationError` when the series do not allow it. Nodes remember keys, so one thread at a time.
"""
ScalarNode: TypeAlias = Callable[[Instant], float]
"""A compiled expression that gives a number."""


def scalar_of(argument: VectorNode) -> ScalarNode:
    """`scalar(v)`: the value of the only series, NaN when there is none or more than one."""

    def scalar(at: Instant) -> float:
        vector = argument(at)
        values = vector.values[vector.present]
        return float(values[0]) if len(values) == 1 else float("nan")

    return scalar


def vector_of(argument: ScalarNode) -> VectorNode:
    """`vector(s)`: a number as the value of the series without labels."""
    keys = Keys([SeriesKey("")])
    return lambda at: Vector(keys, np.array([argument(at)]), np.ones(1, dtype=bool))


@dataclass(frozen=True, slots=True)
class Query:
    """A compiled expression. It remembers matches between evaluations, so one thread at a time."""

    text: str
    reads: tuple[Read, ...]
    """What a store must keep for it."""
    _node: VectorNode = field(repr=False)

    def evaluate(self, store: SeriesStore, time_ms: int) -> Vector:
        """The result at an instant; a number is the value of the series without labels.

        Raises `EvaluationError` when the series of the moment do not allow the expression.
        """
        with np.errstate(all="ignore"):
            return self._node(Instant(store, time_ms))


@dataclass(frozen=True, slots=True)
class MatchedPart:
    """The matched series of one table, and their places among all that matched."""

    table: SampleMatrix
    columns: Columns
    places: slice


class MatchedSeries:
    """The series that a selection matches; looked up again only when the store's series change."""

    def __init__(self, selection: MatcherSet) -> None:
        self.selection = selection
        self._store: SeriesStore | None = None
        self._revision: tuple[int, int] | None = None
        self.keys = Keys(())
        self.parts: list[MatchedPart] = []

    def refresh(self, store: SeriesStore) -> None:
        """Bring `keys` and `parts` up to date; the same `keys` object stays for the same series."""
        revision = store.revision(self.selection.name)
        if store is self._store and revision == self._revision:
            return
        self._store, self._revision = store, revision
        items: list[SeriesKey] = []
        self.parts = []
        for table, columns in store.select(self.selection):
            places = slice(len(items), len(items) + len(columns))
            items.extend(table.keys[column] for column in columns)
            self.parts.append(MatchedPart(table, _consecutive(columns), places))
        if tuple(items) != self.keys.items:
            self.keys = Keys(items)


class InstantSelector:
    """`name{...} offset d`: the newest sample of each series, if it is still good."""

    def __init__(self, selection: MatcherSet, offset_ms: int) -> None:
        self.selection = selection
        self._offset_ms = offset_ms
        self._matched = MatchedSeries(selection)

    def read(self) -> Read:
        """What the store has to keep for this selector."""
        back_ms = LOOKBACK_MS + self._offset_ms if self._offset_ms > 0 else 0
        return Read(self.selection, back_ms)

    def __call__(self, at: Instant) -> Vector:
        """The values at an instant (`VectorNode`)."""
        return self.with_times(at)[0]

    def with_times(self, at: Instant) -> tuple[Vector, Times]:
        """The values, and when each was sampled in milliseconds."""
        matched = self._matched
        matched.refresh(at.store)
        time_ms = at.time_ms - self._offset_ms
        if len(matched.parts) == 1:
            part = matched.parts[0]
            values, present, times = part.table.at(time_ms, LOOKBACK_MS, part.columns)
            return Vector(matched.keys, values, present), times
        values = np.zeros(len(matched.keys))
        present = np.zeros(len(matched.keys), dtype=bool)
        times = np.zeros(len(matched.keys), dtype=np.int64)
        for part in matched.parts:
            values[part.places], present[part.places], times[part.places] = part.table.at(
                time_ms, LOOKBACK_MS, part.columns
            )
        return Vector(matched.keys, values, present), times


def _consecutive(columns: list[int]) -> Columns:
    if columns == list(range(columns[0], columns[0] + len(columns))):
        return slice(columns[0], columns[0] + len(columns))
    return np.array(columns, dtype=np.intp)


def scalar_binary(operator: str, left: ScalarNode, right: ScalarNode) -> ScalarNode:
    """An operator between two numbers; comparisons give 1 or 0."""
    function = _function(operator)
    return lambda at: float(function(np.float64(left(at)), np.float64(right(at))))


def vector_scalar(
    operator: str, vector: VectorNode, number: ScalarNode, *, swapped: bool, as_bool: bool
) -> VectorNode:
    """An operator between a vector and a number, in either order.

    A comparison keeps the series for which it holds, with the vector's value,
    or gives 1 or 0 with `bool`.
    """
    is_filter = operator in _COMPARISON and not as_bool
    function = _function(operator)
    unnamed = Remembered(without_name)

    def result(at: Instant) -> Vector:
        found, other = vector(at), number(at)
        values = function(other, found.values) if swapped else function(found.values, other)
        if is_filter:
            return Vector(found.keys, found.values, found.present & values)
        keys = unnamed(found.keys)
        return Vector(keys, values.astype(np.float64, copy=False), found.present).checked()

    return result


def vector_binary(
    operator: str, left: VectorNode, right: VectorNode, matching: VectorMatching, *, as_bool: bool
) -> VectorNode:
    """Arithmetic or a comparison between series that match."""
    is_filter = operator in _COMPARISON and not as_bool
    function = _function(operator)
    common = Remembered(lambda many, one: common_groups(many, one, matching))
    # The sets of one-to-one and arithmetic are as in resultMetric of promql/engine.go.
    pairs = Pairs(matching, keep_name=is_filter)
    swapped = matching.many == "right"

    def combined(many: Vector, one: Vector, partner: Groups, present: Mask) -> tuple[Floats, Mask]:
        others = one.values[partner]
        first, second = (others, many.values) if swapped else (many.values, others)
        values = function(first, second)
        if is_filter:
            return first, present & values
        return values.astype(np.float64, copy=False), present

    def result(at: Instant) -> Vector:
        many, one = left(at), right(at)
        if swapped:
            many, one = one, many
        if not (many.present.any() and one.present.any()):
            # As in Prometheus, an empty side means no result, even where the other is ambiguous.
            return empty()
        groups = common(many.keys, one.keys)
        ones = the_one_of_each(groups.second, groups.count, one.present, one.keys)
        partner = ones[groups.first]
        present = many.present & (partner >= 0)
        keys = pairs.keys(many.keys, one.keys, np.where(present, partner, -1))
        if not present.any():
            return Vector(keys, np.zeros(len(keys)), present)
        values, present = combined(many, one, partner, present)
        if not matching.many:
            places = np.flatnonzero(present)
            members = groups.first[places]
            refuse_two(np.bincount(members, minlength=groups.count), members, places, many.keys)
        return Vector(keys, values, present).checked()

    return result


def set_operator(
    operator: str, left: VectorNode, right: VectorNode, matching: VectorMatching, *, right_raises: bool
) -> VectorNode:
    """`and`, `or`, `unless`: whole series, chosen by whether the other side has a match.

    Unless evaluating the right side may raise, which has to be reported, it is only where it matters.
    """
    always = right_raises or operator == "or"
    common = Remembered(lambda first, second: common_groups(first, second, matching))
    both = Remembered(lambda first, second: Keys((*first.items, *second.items)))

    def result(at: Instant) -> Vector:
        first = left(at)
        if not always and not first.present.any():
            # As most of the time: most rules say which of what they find does not count.
            return first
        second = right(at)
        if operator == "or" and not (first.present.any() and second.present.any()):
            # Also usual: neither side of most alerts holds.
            return first if first.present.any() else second
        groups = common(first.keys, second.keys)
        if operator == "or":
            covered = np.zeros(groups.count, dtype=bool)
            covered[groups.first[first.present]] = True
            return Vector(
                both(first.keys, second.keys),
                np.concatenate([first.values, second.values]),
                np.concatenate([first.present, second.present & ~covered[groups.second]]),
            )
        matched = np.zeros(groups.count, dtype=bool)
        matched[groups.second[second.present]] = True
        there = matched[groups.first]
        return Vector(first.keys, first.values, first.present & (there if operator == "and" else ~there))

    return result


def _function(operator: str) -> Callable[[Any, Any], Any]:
    return _ARITHMETIC.get(operator) or _COMPARISON[operator]
