"""Which series of the one side of a binary operator belongs to which of the other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import METRIC_NAME_LABEL
from perfd.rules.promql.series_keys import EvaluationError, Keys, describe, with_label

Groups = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorMatching:
    """`on (labels)` or `ignoring (labels)`, and `group_left` or `group_right`."""

    labels: frozenset[str] = frozenset()
    on: bool = False
    many: str = ""
    """The side that may have several series for one of the other: `left`, `right`, or neither."""
    include: tuple[str, ...] = ()
    """Labels to take from the side of the one."""

    def signature(self, key: SeriesKey) -> Hashable:
        """What two series must have in common to match."""
        pairs = tuple(pair for pair in key.labels if (pair[0] in self.labels) == self.on)
        return (pairs, key.name if self.on and METRIC_NAME_LABEL in self.labels else "")

    def result(self, many: SeriesKey, one: SeriesKey, *, keep_name: bool) -> SeriesKey:
        """The labels of the result of a pair; those of the many side, or of the left."""
        key = many if keep_name else SeriesKey("", many.labels)
        if not self.many:
            kept = tuple(pair for pair in key.labels if (pair[0] in self.labels) == self.on)
            named = not self.on or METRIC_NAME_LABEL in self.labels
            key = SeriesKey(key.name if named else "", kept)
        for name in self.include:
            key = with_label(key, name, one.name if name == METRIC_NAME_LABEL else one.label(name))
        return key


@dataclass(frozen=True, slots=True)
class CommonGroups:
    """Groups of equal signature, numbered in common for both sides."""

    first: Groups
    second: Groups
    count: int


def common_groups(first: Keys, second: Keys, matching: VectorMatching) -> CommonGroups:
    """The group of each key of both sides."""
    numbers: dict[Hashable, int] = {}
    sides = [
        np.array(
            [numbers.setdefault(matching.signature(key), len(numbers)) for key in keys.items], dtype=np.intp
        )
        for keys in (first, second)
    ]
    return CommonGroups(sides[0], sides[1], len(numbers))


def the_one_of_each(groups: Groups, count: int, present: Mask, keys: Keys) -> Groups:
    """The place of the only present key of each group, -1 for none; raises when there are two."""
    places = np.flatnonzero(present)
    members = groups[places]
    refuse_two(np.bincount(members, minlength=count), members, places, keys)
    one = np.full(count, -1, dtype=np.intp)
    one[members] = places
    return one


def refuse_two(counts: Groups, members: Groups, places: Groups, keys: Keys) -> None:
    """Raise `EvaluationError` when a group has two members that are present."""
    if (counts > 1).any():
        culprit = int(np.argmax(counts > 1))
        names = " and ".join(describe(keys.items[place]) for place in places[members == culprit][:2])
        raise EvaluationError(
            f"{names} both match: add labels to `on`, or allow it with group_left or group_right"
        )


class Pairs:
    """Result keys of matched pairs; the same object as long as the same series match."""

    def __init__(self, matching: VectorMatching, *, keep_name: bool) -> None:
        self._matching = matching
        self._keep_name = keep_name
        self._sides: tuple[Keys, Keys] | None = None
        self._partner = np.zeros(0, dtype=np.intp)
        self._keys = Keys(())

    def keys(self, many: Keys, one: Keys, partner: Groups) -> Keys:
        """A key for each of `many`, with the labels of its partner; any without one (-1) is not used."""
        new_sides = self._sides is None or self._sides[0] is not many or self._sides[1] is not one
        if not new_sides:
            # One that flickers keeps its last partner, so that the keys stay.
            partner = np.where(partner < 0, self._partner, partner)
        if new_sides or not np.array_equal(partner, self._partner):
            self._sides = (many, one)
            self._partner = partner
            nobody = SeriesKey("")
            self._keys = Keys(
                self._matching.result(
                    key, one.items[place] if place >= 0 else nobody, keep_name=self._keep_name
                )
                for key, place in zip(many.items, partner.tolist(), strict=True)
            )
        return self._keys
