"""Binary operators: between numbers, a vector and a number, and two vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perfd.rules.promql.evaluation import (
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


class ScalarBinary:
    """An operator between two numbers; comparisons give 1 or 0."""

    def __init__(self, operator: str, left: ScalarNode, right: ScalarNode) -> None:
        self._function = _ARITHMETIC.get(operator) or _COMPARISON[operator]
        self._left = left
        self._right = right

    def scalar(self, at: Instant) -> float:
        return float(self._function(np.float64(self._left.scalar(at)), np.float64(self._right.scalar(at))))


class Negated:
    """The unary minus of a number."""

    def __init__(self, argument: ScalarNode) -> None:
        self._argument = argument

    def scalar(self, at: Instant) -> float:
        return -self._argument.scalar(at)


class VectorScalar:
    """An operator between a vector and a number, in either order.

    A comparison keeps the series for which it holds, with the vector's value,
    or gives 1 or 0 with `bool`.
    """

    def __init__(
        self, operator: str, vector: VectorNode, number: ScalarNode, *, swapped: bool, as_bool: bool
    ) -> None:
        self._is_filter = operator in _COMPARISON and not as_bool
        self._function = _ARITHMETIC.get(operator) or _COMPARISON[operator]
        self._vector = vector
        self._number = number
        self._swapped = swapped
        self._without_name = Remembered(without_name)

    def vector(self, at: Instant) -> Vector:
        vector = self._vector.vector(at)
        number = self._number.scalar(at)
        if self._swapped:
            result = self._function(number, vector.values)
        else:
            result = self._function(vector.values, number)
        if self._is_filter:
            return Vector(vector.keys, vector.values, vector.present & result)
        keys = self._without_name(vector.keys)
        return Vector(keys, result.astype(np.float64, copy=False), vector.present).checked()


class VectorBinary:
    """Arithmetic or a comparison between series that match."""

    def __init__(
        self, operator: str, left: VectorNode, right: VectorNode, matching: VectorMatching, *, as_bool: bool
    ) -> None:
        self._is_filter = operator in _COMPARISON and not as_bool
        self._function = _ARITHMETIC.get(operator) or _COMPARISON[operator]
        self._left = left
        self._right = right
        self._matching = matching
        self._groups = Remembered(lambda many, one: common_groups(many, one, matching))
        # The sets of one-to-one and arithmetic are as in resultMetric of promql/engine.go.
        self._pairs = Pairs(matching, keep_name=self._is_filter)

    def vector(self, at: Instant) -> Vector:
        left, right = self._left.vector(at), self._right.vector(at)
        many, one = (right, left) if self._matching.many == "right" else (left, right)
        if not (many.present.any() and one.present.any()):
            # As in Prometheus, an empty side means no result, even where the other is ambiguous.
            return empty()
        groups = self._groups(many.keys, one.keys)
        ones = the_one_of_each(groups.second, groups.count, one.present, one.keys)
        partner = ones[groups.first]
        present = many.present & (partner >= 0)
        keys = self._pairs.keys(many.keys, one.keys, np.where(present, partner, -1))
        if not present.any():
            return Vector(keys, np.zeros(len(keys)), present)
        values, present = self._combine(many, one, partner, present)
        if not self._matching.many:
            places = np.flatnonzero(present)
            members = groups.first[places]
            refuse_two(np.bincount(members, minlength=groups.count), members, places, many.keys)
        return Vector(keys, values, present).checked()

    def _combine(self, many: Vector, one: Vector, partner: Groups, present: Mask) -> tuple[Floats, Mask]:
        others = one.values[partner]
        left, right = (others, many.values) if self._matching.many == "right" else (many.values, others)
        result = self._function(left, right)
        if self._is_filter:
            return left, present & result
        return result.astype(np.float64, copy=False), present


class SetOperator:
    """`and`, `or`, `unless`: whole series, chosen by whether the other side has a match."""

    def __init__(self, operator: str, left: VectorNode, right: VectorNode, matching: VectorMatching) -> None:
        self._operator = operator
        self._left = left
        self._right = right
        self._groups = Remembered(lambda left, right: common_groups(left, right, matching))
        self._both = Remembered(lambda left, right: Keys((*left.items, *right.items)))

    def vector(self, at: Instant) -> Vector:
        left, right = self._left.vector(at), self._right.vector(at)
        groups = self._groups(left.keys, right.keys)
        if self._operator == "or":
            covered = np.zeros(groups.count, dtype=bool)
            covered[groups.first[left.present]] = True
            return Vector(
                self._both(left.keys, right.keys),
                np.concatenate([left.values, right.values]),
                np.concatenate([left.present, right.present & ~covered[groups.second]]),
            )
        matched = np.zeros(groups.count, dtype=bool)
        matched[groups.second[right.present]] = True
        there = matched[groups.first]
        return Vector(left.keys, left.values, left.present & (there if self._operator == "and" else ~there))
