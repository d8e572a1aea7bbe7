"""A frame of series as a page for Prometheus, fast enough for 100,000 series at each scrape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.names import Described
from perfd.exposition import header, number, series
from perfd.series import SeriesFrame, SeriesKey


@dataclass(frozen=True, slots=True)
class _Family:
    """The series of one name: where their values are in a frame, and what stands before each."""

    header: str
    positions: NDArray[np.intp]
    prefixes: NDArray[np.object_]
    prefix_list: list[str]


class PageRenderer:
    """Renders frames; what does not change between two frames with the same `keys` is kept.

    Not thread-safe.
    """

    def __init__(self, describe: Described) -> None:
        self._describe = describe
        self._keys: Sequence[SeriesKey] | None = None
        self._families: list[_Family] = []

    def render(self, frame: SeriesFrame) -> bytes:
        """The page; a series whose value is NaN is absent from it."""
        if frame.keys is not self._keys:
            self._families = self._plan(frame.keys)
            self._keys = frame.keys
        parts: list[str] = []
        for family in self._families:
            values = frame.values[family.positions]
            present = ~np.isnan(values)
            prefixes: Sequence[str] = family.prefix_list
            if not present.all():
                values, prefixes = values[present], family.prefixes[present].tolist()
            if len(values):
                parts.append(family.header)
                _append(parts, prefixes, values)
        return "".join(parts).encode()

    def _plan(self, keys: Sequence[SeriesKey]) -> list[_Family]:
        by_name: dict[str, list[int]] = {}
        for position, key in enumerate(keys):
            by_name.setdefault(key.name, []).append(position)
        families = []
        for name in sorted(by_name):
            positions = by_name[name]
            prefixes = [series(name, dict(keys[position].labels)) + " " for position in positions]
            info = self._describe(name)
            families.append(
                _Family(
                    header(name, info.help, info.kind),
                    np.array(positions, np.intp),
                    np.array(prefixes, dtype=object),
                    prefixes,
                )
            )
        return families


def _append(parts: list[str], prefixes: Sequence[str], values: NDArray[np.float64]) -> None:
    # Whole numbers without `.0` are shorter, and for most values `repr` alone is the fastest there is.
    numbers = values.tolist()
    if np.isfinite(values).all():
        parts.extend([f"{prefix}{value!r}\n" for prefix, value in zip(prefixes, numbers, strict=True)])
    else:
        parts.extend(
            [
                f"{prefix}{value!r}\n" if math.isfinite(value) else f"{prefix}{number(value)}\n"
                for prefix, value in zip(prefixes, numbers, strict=True)
            ]
        )
