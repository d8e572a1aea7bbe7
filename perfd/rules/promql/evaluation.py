"""The interface of compiled expressions: a vector or a number at an instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perfd.metrics.series import SeriesKey
from perfd.rules.promql.vector import Keys, Vector
from perfd.rules.series_store import SeriesStore


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
