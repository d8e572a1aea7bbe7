"""Blocks of series, with keys that stay the same objects while the series do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.metrics.catalog import Value
from perfd.metrics.series import SeriesKey


@dataclass(frozen=True, slots=True)
class Block:
    """Some series that come and go together."""

    keys: Sequence[SeriesKey]
    values: Floats


@dataclass(frozen=True, slots=True)
class _Group:
    """The keys of some blocks in one list."""

    parts: Sequence[Sequence[SeriesKey]]
    keys: Sequence[SeriesKey]

    def is_of(self, parts: Sequence[Sequence[SeriesKey]]) -> bool:
        return len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))


class Blocks:
    """Makes blocks and keys; an unchanged set of series gives the same `keys` object again."""

    def __init__(self, *, label_chars: int = 256) -> None:
        self._keys: dict[tuple[str, ...], tuple[SeriesKey, ...]] = {}
        self._interned: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey | None] = {}
        self._label_chars = label_chars
        self.refused = 0
        """How many series are left out because the value of a label is too long."""
        self._groups: dict[str, _Group] = {}

    def block(self, name: tuple[str, ...], values: Iterable[Value]) -> Block:
        """A block of the name from values in a stable order."""
        keys, numbers = [], []
        for metric, labels, value in values:
            key = self._key(metric, labels)
            if key is None:
                continue
            keys.append(key)
            numbers.append(np.nan if value is None else value)
        old = self._keys.get(name)
        new = tuple(keys)
        if old != new:
            self._keys[name] = old = new
        return Block(old, np.array(numbers, np.float64))

    def keys(self, name: tuple[str, ...], make: Callable[[], Iterable[SeriesKey]]) -> Sequence[SeriesKey]:
        """The keys of a block, made only if its name is new: the name has all that they depend on."""
        known = self._keys.get(name)
        if known is None:
            known = self._keys[name] = tuple(make())
        return known

    def keep(self, names: Iterable[tuple[str, ...]]) -> None:
        """Forget all blocks but these."""
        kept = set(names)
        for name in [name for name in self._keys if name not in kept]:
            del self._keys[name]
        if len(self._interned) > 4 * (1024 + sum(map(len, self._keys.values()))):
            self._interned.clear()

    def joined(self, group: str, parts: Sequence[Sequence[SeriesKey]]) -> Sequence[SeriesKey]:
        """The keys of the blocks of a group in one list, which is the same object for the same blocks."""
        known = self._groups.get(group)
        if known is None or not known.is_of(parts):
            known = self._groups[group] = _Group(parts, [key for part in parts for key in part])
        return known.keys

    def _key(self, metric: str, labels: Mapping[str, str]) -> SeriesKey | None:
        identity = (metric, tuple(labels.items()))
        if identity not in self._interned:
            fits = all(len(text) <= self._label_chars for text in labels.values())
            self._interned[identity] = SeriesKey.of(metric, labels) if fits else None
            self.refused += not fits
        return self._interned[identity]
