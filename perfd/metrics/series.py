"""Time series as in Prometheus: a name, labels, and values over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """The identity of a series; labels are sorted by name and have no empty values."""

    name: str
    labels: Labels = ()

    @classmethod
    def of(cls, name: str, labels: Mapping[str, str] | None = None) -> SeriesKey:
        """Build a key from labels in any order; empty values are dropped, as in Prometheus."""
        return cls(name, tuple(sorted((k, v) for k, v in (labels or {}).items() if v)))

    def label(self, name: str) -> str:
        """The value of a label; empty when the series does not have it."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(frozen=True, slots=True)
class SeriesFrame:
    """The values of many series at one instant: `values[i]` belongs to `keys[i]`.

    A producer passes the same `keys` object as long as its series stay the
    same, so that a consumer can compare by identity. NaN means absent.
    """

    time_unix_s: float
    keys: Sequence[SeriesKey]
    values: NDArray[np.float64]
