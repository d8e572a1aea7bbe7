"""Series of vectors: compared by identity, so that what follows from them is computed when they change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from operator import is_
from typing import Generic, ParamSpec, TypeVar

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import METRIC_NAME_LABEL

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


class Remembered(Generic[P, R]):
    """A function that remembers its last result for arguments that are the same objects."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._arguments: tuple[object, ...] | None = None
        self._result: R | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        known = self._arguments
        if known is None or not all(map(is_, args, known)) or self._result is None:
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


def with_label(key: SeriesKey, name: str, value: str) -> SeriesKey:
    """The series with a label set, or taken away when the value is empty."""
    if name == METRIC_NAME_LABEL:
        return SeriesKey(value, key.labels)
    return SeriesKey.of(key.name, {**dict(key.labels), name: value})


def label_of(key: SeriesKey, name: str) -> str:
    """A label of a series, which may be its metric's name."""
    return key.name if name == METRIC_NAME_LABEL else key.label(name)
