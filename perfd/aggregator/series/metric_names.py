"""Names and descriptions of everything on the aggregator's page, raw columns of collectors too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from perfd.collector import CollectorSpec, Column, ColumnKind
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.errors import PerfdError
from perfd.metrics.catalog import METRICS, MetricInfo, raw_metric
from perfd.model import Scope

Described = Callable[[str], MetricInfo]
"""From an exported name to what is known about it."""


class MetricNames:
    """The catalog, extended by the columns of the installed collectors and by what agents send."""

    def __init__(self, specs: Iterable[CollectorSpec]) -> None:
        self._metrics: dict[str, MetricInfo] = dict(METRICS)
        self._raw: dict[tuple[Scope, str], str] = {}
        for spec in specs:
            for column in spec.columns:
                self._add(column)

    @classmethod
    def installed(cls) -> MetricNames:
        """The names of all collectors that are installed; one that cannot be imported is left out."""
        specs = []
        for name in collector_entry_points():
            with contextlib.suppress(PerfdError, ImportError, AttributeError):
                specs.append(load_collector(name))
        return cls(specs)

    def all(self) -> frozenset[str]:
        """Every exported name that is known."""
        return frozenset(self._metrics)

    def exported(self, scope: Scope, column: str) -> str:
        """The exported name of a raw column; one that is not known here is taken for a gauge."""
        name = self._raw.get((scope, column))
        if name is None:
            unknown = Column(
                scope=scope,
                name=column,
                help=f"Column {column} of a collector that is not installed here.",
                source="agent",
                absent="Its collector does not send it.",
            )
            name = self._add(unknown)
        return name

    def describe(self, name: str) -> MetricInfo:
        """What is known of an exported metric; one that is not in the catalog was recorded by a rule."""
        return self._metrics.get(name) or _recorded(name)

    def _add(self, column: Column) -> str:
        metric = raw_metric(column)
        self._metrics.setdefault(metric.name, metric)
        self._raw[(column.scope, column.name)] = metric.name
        return metric.name


def _recorded(name: str) -> MetricInfo:
    return MetricInfo(
        name=name,
        kind=ColumnKind.GAUGE,
        unit="1",
        labels=(),
        help="Recorded by a rule.",
        source="perfd.rules",
        absent="Its expression has no result.",
    )
