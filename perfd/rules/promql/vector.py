"""One value for each of many series, with the series stored separately from the values.

The set of series changes rarely, the values all the time. Every operator therefore
works on arrays over a fixed set of keys with a mask of those that are present, and
computes names, groups and matches only when the set of keys changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey
from perfd.rules.promql.evaluation_error import EvaluationError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

P = ParamSpec("P")
R = TypeVar("R")


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
