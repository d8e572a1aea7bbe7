"""Functions of one value for each series, and those of labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import METRIC_NAME_LABEL, Matcher, compile_regex
from perfd.rules.promql.instant_vectors import (
    Floats,
    Instant,
    InstantSelector,
    ScalarNode,
    Vector,
    VectorNode,
    empty,
)
from perfd.rules.promql.range_vectors import RangeSelector
from perfd.rules.promql.series_keys import Keys, Remembered, label_of, with_label, without_name


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


def elementwise(name: str, argument: VectorNode, parameters: Sequence[ScalarNode]) -> VectorNode:
    """A function of each value, which drops the metric's name."""
    function = ELEMENTWISE[name]
    unnamed = Remembered(without_name)

    def vector(at: Instant) -> Vector:
        found = argument(at)
        numbers = [parameter(at) for parameter in parameters]
        if name == "clamp" and numbers[1] < numbers[0]:
            return empty()
        return Vector(unnamed(found.keys), function(found.values, *numbers), found.present).checked()

    return vector


def timestamp(argument: VectorNode) -> VectorNode:
    """`timestamp(v)`: when each value was sampled; the time of the evaluation for computed values."""
    unnamed = Remembered(without_name)

    def vector(at: Instant) -> Vector:
        if isinstance(argument, InstantSelector):
            found, times_ms = argument.with_times(at)
            values = times_ms / 1000
        else:
            found = argument(at)
            values = np.full(len(found.keys), at.time_ms / 1000)
        return Vector(unnamed(found.keys), values, found.present).checked()

    return vector


def absent(argument: VectorNode, matchers: tuple[Matcher, ...]) -> VectorNode:
    """`absent(v)`: 1, with the labels that the selector asks for, when there is no series."""
    keys = Keys([_absent_key(matchers)])
    return lambda at: _one_unless(bool(argument(at).present.any()), keys)


def absent_over_time(argument: RangeSelector) -> VectorNode:
    """`absent_over_time(r)`: as `absent`, for any sample in the range."""
    keys = Keys([_absent_key(argument.selection.matchers)])
    return lambda at: _one_unless(bool(argument.samples(at)[1]), keys)


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


def relabelled(argument: VectorNode, change: Callable[[SeriesKey], SeriesKey]) -> VectorNode:
    """`label_replace` and `label_join`: other labels, the same values."""
    changed = Remembered(lambda keys: Keys(change(key) for key in keys.items))

    def vector(at: Instant) -> Vector:
        found = argument(at)
        return Vector(changed(found.keys), found.values, found.present).checked()

    return vector


def label_replace(
    target: str, replacement: str, source: str, pattern: str
) -> Callable[[SeriesKey], SeriesKey]:
    """The change that `label_replace(v, target, replacement, source, pattern)` makes to a series.

    Raises `ValueError` when the pattern is not a regular expression of the subset.
    """
    regex = compile_regex(pattern)

    def change(key: SeriesKey) -> SeriesKey:
        match = regex.fullmatch(label_of(key, source))
        return key if match is None else with_label(key, target, _expand(replacement, match))

    return change


def label_join(target: str, separator: str, sources: list[str]) -> Callable[[SeriesKey], SeriesKey]:
    """The change that `label_join(v, target, separator, *sources)` makes to a series."""
    return lambda key: with_label(key, target, separator.join(label_of(key, source) for source in sources))


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
