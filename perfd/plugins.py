"""Finds collectors by entry point: those that ship and those of others alike."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from perfd.collector import CollectorSpec
from perfd.errors import ConfigError

COLLECTOR_GROUP = "perfd.collectors"


def collector_entry_points() -> dict[str, EntryPoint]:
    """Every installed collector by name, not imported yet."""
    return {point.name: point for point in entry_points(group=COLLECTOR_GROUP)}


def load_collector(name: str) -> CollectorSpec:
    """Import one collector's specification; raises `ConfigError` when there is none of that name."""
    points = collector_entry_points()
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ConfigError(f"There is no collector called {name!r}; installed are: {known}.")
    spec = points[name].load()
    if not isinstance(spec, CollectorSpec):
        raise ConfigError(f"The entry point of collector {name!r} is not a CollectorSpec: {spec!r}.")
    return spec
