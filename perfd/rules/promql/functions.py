"""Functions of one value for each series, and those of labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import METRIC_NAME_LABEL, Matcher, compile_regex
from perfd.rules.promql.evaluation import (
    Floats,
    Instant,
    Keys,
    Remembered,
    ScalarNode,
    Vector,
    VectorNode,
    empty,
    without_name,
)
from perfd.rules.promql.selectors import InstantSelector, RangeSelector


def _round(values: Floats, to_nearest: float) -> Floats:
    # As Prometheus does it, with the inverse, so that the same digits come out.
    inverse = np.float64(1.0) / np.float64(to_nearest)
    result: Floats = np.floor(values * inverse + 0.5) / inverse
    return result


ELEMENTWISE: Mapping[str, Callable[..., Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "round": _round,
    "sgn": np.sign,
    "sqrt": np.sqrt,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "clamp": lambda values, low, high: np.maximum(low, np.minimum(high, values)),
    "neg": np.negative,
}
"""By name, `neg` is the unary minus; arguments after the first are numbers."""


class Elementwise:
    """A function of each value, which drops the metric's name."""

    def __init__(self, name: str, argument: VectorNode, parameters: list[ScalarNode]) -> None:
        self._function = ELEMENTWISE[name]
        self._argument = argument
        self._parameters = parameters
        self._is_clamp = name == "clamp"
        self._without_name = Remembered(without_name)

    def vector(self, at: Instant) -> Vector:
        vector = self._argument.vector(at)
        parameters = [parameter.scalar(at) for parameter in self._parameters]
        if self._is_clamp and parameters[1] < parameters[0]:
            return empty()
        values = self._function(vector.values, *parameters)
        return Vector(self._without_name(vector.keys), values, vector.present).checked()


class Timestamp:
    """`timestamp(v)`: when each value was sampled; the time of the evaluation for computed values."""

    def __init__(self, argument: VectorNode) -> None:
        self._argument = argument
        self._without_name = Remembered(without_name)

    def vector(self, at: Instant) -> Vector:
        if isinstance(self._argument, InstantSelector):
            vector, times_ms = self._argument.with_times(at)
            values = times_ms / 1000
        else:
            vector = self._argument.vector(at)
            values = np.full(len(vector.keys), at.time_ms / 1000)
        return Vector(self._without_name(vector.keys), values, vector.present).checked()


class Absent:
    """`absent(v)`: 1, with the labels that the selector asks for, when there is no series."""

    def __init__(self, argument: VectorNode, matchers: tuple[Matcher, ...]) -> None:
        self._argument = argument
        self._keys = Keys([_absent_key(matchers)])

    def vector(self, at: Instant) -> Vector:
        return _one_unless(bool(self._argument.vector(at).present.any()), self._keys)


class AbsentOverTime:
    """`absent_over_time(r)`: as `absent`, for any sample in the range."""

    def __init__(self, argument: RangeSelector) -> None:
        self._argument = argument
        self._keys = Keys([_absent_key(argument.selection.matchers)])

    def vector(self, at: Instant) -> Vector:
        _, parts = self._argument.samples(at)
        return _one_unless(bool(parts), self._keys)


def _one_unless(found: bool, keys: Keys) -> Vector:
    return Vector(keys, np.ones(1), np.full(1, not found))


def _absent_key(matchers: tuple[Matcher, ...]) -> SeriesKey:
    """The labels that equality matchers fix; a label that has any other matcher is left out."""
    labels: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in matchers:
        if matcher.label == METRIC_NAME_LABEL:
            continue
        if matcher.op == "=" and matcher.label not in seen:
            labels[matcher.label] = matcher.value
            seen.add(matcher.label)
        else:
            labels.pop(matcher.label, None)
    return SeriesKey.of("", labels)


class Relabelled:
    """`label_replace` and `label_join`: other labels, the same values."""

    def __init__(self, argument: VectorNode, change: Callable[[SeriesKey], SeriesKey]) -> None:
        self._argument = argument
        self._change = Remembered(lambda keys: Keys(change(key) for key in keys.items))

    def vector(self, at: Instant) -> Vector:
        vector = self._argument.vector(at)
        return Vector(self._change(vector.keys), vector.values, vector.present).checked()


def label_replace(
    target: str, replacement: str, source: str, pattern: str
) -> Callable[[SeriesKey], SeriesKey]:
    """The change that `label_replace(v, target, replacement, source, pattern)` makes to a series.

    Raises `ValueError` when the pattern is not a regular expression of the subset.
    """
    regex = compile_regex(pattern)

    def change(key: SeriesKey) -> SeriesKey:
        match = regex.fullmatch(_label(key, source))
        return key if match is None else with_label(key, target, _expand(replacement, match))

    return change


def label_join(target: str, separator: str, sources: list[str]) -> Callable[[SeriesKey], SeriesKey]:
    """The change that `label_join(v, target, separator, *sources)` makes to a series."""
    return lambda key: with_label(key, target, separator.join(_label(key, source) for source in sources))


def with_label(key: SeriesKey, name: str, value: str) -> SeriesKey:
    """The series with a label set, or taken away when the value is empty."""
    if name == METRIC_NAME_LABEL:
        return SeriesKey(value, key.labels)
    return SeriesKey.of(key.name, {**dict(key.labels), name: value})


def _label(key: SeriesKey, name: str) -> str:
    return key.name if name == METRIC_NAME_LABEL else key.label(name)


_MOST_REFERENCE_CHARS = 256
"""No group has a longer name or number; Python converts no number of more than 4,300 digits."""
_REFERENCE = re.compile(r"\$(?:\$|\{(\w+)\}|(\w+))", re.ASCII)


def _expand(template: str, match: re.Match[str]) -> str:
    """Go's `Regexp.Expand`: `$1`, `${1}`, `$name`; `$$` is a dollar; what is unknown is empty."""

    def group(reference: re.Match[str]) -> str:
        if reference[0] == "$$":
            return "$"
        name = reference[1] or reference[2]
        if len(name) > _MOST_REFERENCE_CHARS:
            return ""
        try:
            return match[int(name) if name.isdigit() else name] or ""
        except IndexError:
            return ""

    return _REFERENCE.sub(group, template)
