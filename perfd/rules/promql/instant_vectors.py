"""What an expression evaluates to, and the selectors that read it from a store of series.

A vector is one value for each of many series, with the series stored separately from the values: the set of
series changes rarely, the values all the time. Every operator therefore works on arrays over a fixed set of
keys with a mask of those that are present, and computes names, groups and matches only when the set of keys
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import MatcherSet
from perfd.rules.series_store import (
    LOOKBACK_MS,
    Block,
    Columns,
    Read,
    SampleMatrix,
    SeriesStore,
    Times,
    is_value,
)

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

P = ParamSpec("P")
R = TypeVar("R")


class EvaluationError(Exception):
    """The current series do not allow the expression, for example because a match is ambiguous."""


class Keys:
    """The series of a vector. Compared by identity: operators keep one as long as nothing changes."""

    def __init__(self, items: Iterable[SeriesKey]) -> None:
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def repeated(self) -> bool:
        """Whether two keys are equal, so that both must not be present at once."""
        return len(set(self.items)) < len(self.items)


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


class Remembered(Generic[P, R]):
    """A function that remembers its last result for arguments that are the same objects."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._arguments: tuple[object, ...] | None = None
        self._result: R | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        known = self._arguments
        if known is None or any(a is not b for a, b in zip(args, known, strict=True)) or self._result is None:
            self._result = self._function(*args, **kwargs)
            self._arguments = args
        return self._result


def without_name(keys: Keys) -> Keys:
    """The keys without their metric's name, as after any arithmetic."""
    return Keys(SeriesKey("", key.labels) for key in keys.items)


def describe(key: SeriesKey) -> str:
    """A series as Prometheus writes it."""
    labels = ", ".join(f'{name}="{_escaped(value)}"' for name, value in key.labels)
    return f"{key.name}{{{labels}}}" if labels or not key.name else key.name


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
class _Part:
    """The matched series of one table, and their places among all that matched."""

    table: SampleMatrix
    columns: Columns
    places: slice


class _Matched:
    """The series that a selection matches; looked up again only when the store's series change."""

    def __init__(self, selection: MatcherSet) -> None:
        self.selection = selection
        self._store: SeriesStore | None = None
        self._revision: tuple[int, int] | None = None
        self.keys = Keys(())
        self.parts: list[_Part] = []

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
            self.parts.append(_Part(table, _consecutive(columns), places))
        if tuple(items) != self.keys.items:
            self.keys = Keys(items)


class InstantSelector:
    """`name{...} offset d`: the newest sample of each series, if it is still good."""

    def __init__(self, selection: MatcherSet, offset_ms: int) -> None:
        self.selection = selection
        self._offset_ms = offset_ms
        self._matched = _Matched(selection)

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
        self._matched = _Matched(selection)

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


def _consecutive(columns: list[int]) -> Columns:
    if columns == list(range(columns[0], columns[0] + len(columns))):
        return slice(columns[0], columns[0] + len(columns))
    return np.array(columns, dtype=np.intp)
