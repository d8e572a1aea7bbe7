"""Selectors: the samples of series of a store, at an instant or over a range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import MatcherSet
from perfd.rules.promql.evaluation import Floats, Instant, Keys, Mask, Vector
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

    def vector(self, at: Instant) -> Vector:
        vector, _ = self.with_times(at)
        return vector

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


def scatter(keys: Keys) -> tuple[Floats, Mask]:
    """Arrays to fill with results by place."""
    return np.full(len(keys), np.nan), np.zeros(len(keys), dtype=bool)
