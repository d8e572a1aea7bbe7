"""Finds collectors by entry point, both shipped and third-party ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from perfd.collector import CollectorSpec, Column
from perfd.errors import ConfigError
from perfd.model import NicColumn, RankColumn, WellKnownColumn

COLLECTOR_GROUP = "perfd.collectors"

_READ_TOGETHER: Sequence[frozenset[WellKnownColumn]] = (
    frozenset({RankColumn.NCCL_BUSY, RankColumn.NCCL_LOST_OPERATIONS}),
    frozenset({NicColumn.LINK_UP, NicColumn.SPEED}),
)
"""perfd reads all columns of a group or none of them."""


@cache
def collector_entry_points() -> Mapping[str, EntryPoint]:
    """Installed collectors by name, not imported yet."""
    # Looking them up reads the metadata of all installed packages.
    return {point.name: point for point in entry_points(group=COLLECTOR_GROUP)}


def load_collector(name: str) -> CollectorSpec:
    """Import one collector's specification.

    Raises `ConfigError` when there is none of that name, or it lacks columns that perfd reads from it.
    """
    points = collector_entry_points()
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ConfigError(f"Unknown collector {name!r}; installed are: {known}.")
    spec = points[name].load()
    if not isinstance(spec, CollectorSpec):
        raise ConfigError(f"The entry point of collector {name!r} is not a CollectorSpec: {spec!r}.")
    problems = " ".join(column_problems(spec))
    if problems:
        raise ConfigError(f"The collector {name!r} cannot be used: {problems}")
    return spec


def column_problems(spec: CollectorSpec) -> Iterator[str]:
    """Why perfd could not read the well-known columns that a collector provides, one sentence each."""
    columns = {(column.scope, column.name): column for column in spec.columns}
    for known in spec.provides:
        column = columns.get((known.scope, known.value))
        if column is None:
            yield f"It provides {known} per {known.scope}, but has no such column{_nearest(known, spec)}."
        elif column.kind is not known.kind:
            yield f"Its column {known} must be a {known.kind}, not a {column.kind}."
    for group in _READ_TOGETHER:
        provided, missing = sorted(group & {*spec.provides}), sorted(group - {*spec.provides})
        if provided and missing:
            yield f"It provides {', '.join(provided)} without {', '.join(missing)}: perfd reads both or none."


def _nearest(known: WellKnownColumn, spec: CollectorSpec) -> str:
    """A column that was perhaps meant: of the same name in another scope, or in another unit."""
    quantity = known.rpartition("_")[0]
    meant: list[Column] = [
        column
        for column in spec.columns
        if column.name == known
        or (column.scope is known.scope and quantity and column.name.rpartition("_")[0] == quantity)
    ]
    return f", only {meant[0].name} per {meant[0].scope}" if meant else ""
