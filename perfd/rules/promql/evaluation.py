"""What an expression evaluates to, and the interface of the nodes that it is compiled to.

A vector is one value for each of many series, with the series stored separately from the values: the set of
series changes rarely, the values all the time. Every operator therefore works on arrays over a fixed set of
keys with a mask of those that are present, and computes names, groups and matches only when the set of keys
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey
from perfd.rules.series_store import Read, SeriesStore

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


class VectorNode(Protocol):
    """Gives a value for each of some series. Nodes remember keys, so one thread at a time."""

    def vector(self, at: Instant) -> Vector:
        """The values at an instant; raises `EvaluationError` when the series do not allow it."""


class ScalarNode(Protocol):
    """Gives a number."""

    def scalar(self, at: Instant) -> float:
        """The number at an instant."""


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: float

    def scalar(self, at: Instant) -> float:  # noqa: ARG002 — every node takes the instant.
        return self.value


class EvaluationTime:
    """`time()`, in seconds."""

    def scalar(self, at: Instant) -> float:
        return at.time_ms / 1000


@dataclass(frozen=True, slots=True)
class ScalarOf:
    """`scalar(v)`: the value of the only series, NaN when there is none or more than one."""

    argument: VectorNode

    def scalar(self, at: Instant) -> float:
        vector = self.argument.vector(at)
        values = vector.values[vector.present]
        return float(values[0]) if len(values) == 1 else float("nan")


class VectorOf:
    """`vector(s)`: a number as the value of the series without labels."""

    def __init__(self, argument: ScalarNode) -> None:
        self._argument = argument
        self._keys = Keys([SeriesKey("")])

    def vector(self, at: Instant) -> Vector:
        return Vector(self._keys, np.array([self._argument.scalar(at)]), np.ones(1, dtype=bool))


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
            return self._node.vector(Instant(store, time_ms))
