"""Binary operators: between numbers, a vector and a number, and two vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perfd.rules.promql.instant_vectors import (
    Floats,
    Instant,
    Keys,
    Mask,
    Remembered,
    ScalarNode,
    Vector,
    VectorNode,
    empty,
    without_name,
)
from perfd.rules.promql.vector_matching import (
    Groups,
    Pairs,
    VectorMatching,
    common_groups,
    refuse_two,
    the_one_of_each,
)

# What they do to numbers: as IEEE 754 says, never an exception.
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
}
_COMPARISON: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
SET_OPERATORS = frozenset({"and", "or", "unless"})


def scalar_binary(operator: str, left: ScalarNode, right: ScalarNode) -> ScalarNode:
    """An operator between two numbers; comparisons give 1 or 0."""
    function = _function(operator)
    return lambda at: float(function(np.float64(left(at)), np.float64(right(at))))


def vector_scalar(
    operator: str, vector: VectorNode, number: ScalarNode, *, swapped: bool, as_bool: bool
) -> VectorNode:
    """An operator between a vector and a number, in either order.

    A comparison keeps the series for which it holds, with the vector's value,
    or gives 1 or 0 with `bool`.
    """
    is_filter = operator in _COMPARISON and not as_bool
    function = _function(operator)
    unnamed = Remembered(without_name)

    def result(at: Instant) -> Vector:
        found, other = vector(at), number(at)
        values = function(other, found.values) if swapped else function(found.values, other)
        if is_filter:
            return Vector(found.keys, found.values, found.present & values)
        keys = unnamed(found.keys)
        return Vector(keys, values.astype(np.float64, copy=False), found.present).checked()

    return result


def vector_binary(
    operator: str, left: VectorNode, right: VectorNode, matching: VectorMatching, *, as_bool: bool
) -> VectorNode:
    """Arithmetic or a comparison between series that match."""
    is_filter = operator in _COMPARISON and not as_bool
    function = _function(operator)
    common = Remembered(lambda many, one: common_groups(many, one, matching))
    # The sets of one-to-one and arithmetic are as in resultMetric of promql/engine.go.
    pairs = Pairs(matching, keep_name=is_filter)
    swapped = matching.many == "right"

    def combined(many: Vector, one: Vector, partner: Groups, present: Mask) -> tuple[Floats, Mask]:
        others = one.values[partner]
        first, second = (others, many.values) if swapped else (many.values, others)
        values = function(first, second)
        if is_filter:
            return first, present & values
        return values.astype(np.float64, copy=False), present

    def result(at: Instant) -> Vector:
        many, one = left(at), right(at)
        if swapped:
            many, one = one, many
        if not (many.present.any() and one.present.any()):
            # As in Prometheus, an empty side means no result, even where the other is ambiguous.
            return empty()
        groups = common(many.keys, one.keys)
        ones = the_one_of_each(groups.second, groups.count, one.present, one.keys)
        partner = ones[groups.first]
        present = many.present & (partner >= 0)
        keys = pairs.keys(many.keys, one.keys, np.where(present, partner, -1))
        if not present.any():
            return Vector(keys, np.zeros(len(keys)), present)
        values, present = combined(many, one, partner, present)
        if not matching.many:
            places = np.flatnonzero(present)
            members = groups.first[places]
            refuse_two(np.bincount(members, minlength=groups.count), members, places, many.keys)
        return Vector(keys, values, present).checked()

    return result


def set_operator(operator: str, left: VectorNode, right: VectorNode, matching: VectorMatching) -> VectorNode:
    """`and`, `or`, `unless`: whole series, chosen by whether the other side has a match."""
    common = Remembered(lambda first, second: common_groups(first, second, matching))
    both = Remembered(lambda first, second: Keys((*first.items, *second.items)))

    def result(at: Instant) -> Vector:
        first, second = left(at), right(at)
        groups = common(first.keys, second.keys)
        if operator == "or":
            covered = np.zeros(groups.count, dtype=bool)
            covered[groups.first[first.present]] = True
            return Vector(
                both(first.keys, second.keys),
                np.concatenate([first.values, second.values]),
                np.concatenate([first.present, second.present & ~covered[groups.second]]),
            )
        matched = np.zeros(groups.count, dtype=bool)
        matched[groups.second[second.present]] = True
        there = matched[groups.first]
        return Vector(first.keys, first.values, first.present & (there if operator == "and" else ~there))

    return result


def _function(operator: str) -> Callable[[Any, Any], Any]:
    return _ARITHMETIC.get(operator) or _COMPARISON[operator]
