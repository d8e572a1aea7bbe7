"""The newest raw samples of a node, so that a Prometheus may scrape the agent alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence

from perfd.collector import Column, ColumnKind
from perfd.metrics.exposition import MetricFamily, Sample, entity_labels, exported_name
from perfd.model import RankPlacement, Record, SampleTable, Scope

_STALE_AFTER_S = 60.0
"""A GPU that was lost, or a collector that fails, leaves the exposition after so long."""

_MAX_TABLES = 64
"""A collector whose columns change all the time must not fill the memory; the oldest go."""


class LatestSamples:
    """Keeps the last table of each kind; a tap of the batcher. Any thread may call any method."""

    def __init__(self, node: str, columns: Iterable[Column]) -> None:
        self._node = node
        self._columns = {(column.scope, column.name): column for column in columns}
        self._lock = threading.Lock()
        self._tables: dict[tuple[object, ...], SampleTable] = {}
        self._ranks: dict[str, RankPlacement] = {}

    def __call__(self, records: Sequence[Record]) -> None:
        with self._lock:
            for record in records:
                if isinstance(record, SampleTable) and record.times_unix_ns:
                    # Work is left to whoever asks: most agents are never scraped.
                    self._keep((record.scope, *record.columns), record)
                elif isinstance(record, RankPlacement) and record.gpu is not None:
                    self._ranks[str(record.gpu)] = record

    def _keep(self, key: tuple[object, ...], table: SampleTable) -> None:
        self._tables.pop(key, None)
        self._tables[key] = table
        while len(self._tables) > _MAX_TABLES:
            self._tables.pop(next(iter(self._tables)))

    def families(self, now_unix_ns: int) -> list[MetricFamily]:
        """The newest value of each column of each GPU, device or rank that is not stale."""
        oldest_unix_ns = now_unix_ns - round(_STALE_AFTER_S * 1e9)
        with self._lock:
            tables, ranks = list(self._tables.values()), dict(self._ranks)
        newest: dict[tuple[Scope, str], dict[str, tuple[int, float]]] = {}
        for table in tables:
            rows = {entity: row for row, entity in enumerate(table.entities)}
            for name, values in table.columns.items():
                column = newest.setdefault((table.scope, name), {})
                for entity, row in rows.items():
                    candidate = (table.times_unix_ns[row], values[row])
                    if candidate[0] >= max(oldest_unix_ns, column.get(entity, (0, 0.0))[0]):
                        column[entity] = candidate
        return [self._family(scope, name, values, ranks) for (scope, name), values in newest.items()]

    def _family(
        self,
        scope: Scope,
        name: str,
        values: Mapping[str, tuple[int, float]],
        ranks: Mapping[str, RankPlacement],
    ) -> MetricFamily:
        column = self._columns.get((scope, name))
        kind = column.kind if column else ColumnKind.GAUGE
        return MetricFamily(
            name=exported_name(scope, name, kind),
            help=column.help if column else f"The column {name} of a collector.",
            kind=kind,
            samples=[
                Sample(value=value, labels=self._labels(scope, entity, ranks))
                for entity, (_, value) in values.items()
                # NaN is "absent" in a table; an exposition says that by leaving the series out.
                if not math.isnan(value)
            ],
        )

    def _labels(self, scope: Scope, entity: str, ranks: Mapping[str, RankPlacement]) -> dict[str, str]:
        labels = entity_labels(scope, entity, self._node)
        placement = ranks.get(entity) if scope is Scope.GPU else None
        if placement is not None:
            labels |= {"job": placement.job, "rank": str(placement.rank)}
        return labels
