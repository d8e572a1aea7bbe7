"""Where the cells of a table belong among the entities and metrics of a node that were seen before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_METRIC = re.compile(r"[a-z][a-z0-9_]{0,99}")
"""What can become the name of an exported series."""
_ENTITY = re.compile(r".{0,256}", re.DOTALL)
"""What can become the value of a label."""
_MOST_CELLS = 8_192
"""Of one table: bounds what a node can make the aggregator hold."""


class NameIndex:
    """Positions of names in the order they were first seen, up to a bound, if they match a pattern."""

    __slots__ = "_limit", "_pattern", "_positions", "known"

    def __init__(self, limit: int, pattern: re.Pattern[str] | None = None) -> None:
        self._limit = limit
        self._pattern = pattern
        self._positions: dict[str, int] = {}
        self.known: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._positions)

    def position(self, name: str) -> int | None:
        """The position of a name that was seen; None for another."""
        return self._positions.get(name)

    def positions(self, names: Sequence[str], most: int | None = None) -> tuple[list[int], int]:
        """The position of each name, -1 where a bound refused it, and how many names it refused.

        `most` is a second bound on how many names there may be, for now.
        """
        limit = self._limit if most is None else min(self._limit, most)
        positions = self._positions
        try:
            return [positions[name] for name in names], 0
        except KeyError:
            refused = set()
            for name in dict.fromkeys(names):
                if name in positions:
                    continue
                if len(positions) < limit and (self._pattern is None or self._pattern.fullmatch(name)):
                    positions[name] = len(positions)
                else:
                    refused.add(name)
            self.known = tuple(positions)
            return [positions.get(name, -1) for name in names], len(refused)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Where the cells of a table belong."""

    entities: Sequence[str]
    columns: Sequence[str]
    waves: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]]
    """Positions of entities and their rows; each wave has an entity once, a later one is newer."""
    kept: NDArray[np.intp]
    """Columns of the table that have a place."""
    metrics: NDArray[np.intp]
    """Their places."""
    refused: int
    """How many names have no place."""
    whole: bool
    """The table is one row of each entity there is, and each metric, in order."""

    def fits(self, entities: Sequence[str], columns: Sequence[str]) -> bool:
        """Whether a table has the rows and columns of the one that the plan was made for."""
        # Names are mostly the same objects, as tables of one form share them; two equal tuples are compared
        # name by name.
        same = self.entities is entities and self.columns is columns
        return same or (self.entities == entities and self.columns == columns)


class Layout:
    """The entities and metrics of one scope of a node, in the order they were first seen."""

    __slots__ = "_cells", "_newest", "entities", "metrics", "shape"

    def __init__(self, *, entities: int, metrics: int, cells: int = _MOST_CELLS) -> None:
        self.entities = NameIndex(entities, _ENTITY)
        self.metrics = NameIndex(metrics, _METRIC)
        self._cells = cells
        self._newest: TableLayout | None = None
        self.shape = 0, 0
        """How many entities and metrics there are."""

    def plan(self, entities: Sequence[str], columns: Sequence[str]) -> TableLayout:
        """Where a table's cells belong; tables are alike from one second to the next, and so are plans.

        `entities` has one name for each row.
        """
        if self._newest is None or not self._newest.fits(entities, columns):
            self._newest = self._new_plan(tuple(entities), tuple(columns))
        return self._newest

    def _new_plan(self, entities: Sequence[str], columns: Sequence[str]) -> TableLayout:
        rows, refused_entities = self.entities.positions(entities, self._cells // max(1, len(self.metrics)))
        places, refused_metrics = self.metrics.positions(columns, self._cells // max(1, len(self.entities)))
        waves = _waves(rows)
        self.shape = len(self.entities), len(self.metrics)
        everything = range(len(self.entities)), range(len(self.metrics))
        return TableLayout(
            entities=entities,
            columns=columns,
            waves=[
                (np.fromiter(wave, np.intp, len(wave)), np.fromiter(wave.values(), np.intp, len(wave)))
                for wave in waves
            ],
            kept=np.array([index for index, place in enumerate(places) if place >= 0], np.intp),
            metrics=np.array([place for place in places if place >= 0], np.intp),
            refused=refused_entities + refused_metrics,
            whole=(tuple(rows), tuple(places)) == tuple(map(tuple, everything)),
        )


def _waves(rows: Sequence[int]) -> list[dict[int, int]]:
    """Rows in groups that name each entity once, in order: entity to row; refused entities left out."""
    waves: list[dict[int, int]] = []
    occurrences: dict[int, int] = {}
    for row, entity in enumerate(rows):
        if entity < 0:
            continue
        wave = occurrences.get(entity, 0)
        occurrences[entity] = wave + 1
        if wave == len(waves):
            waves.append({})
        waves[wave][entity] = row
    return waves
