"""The newest raw samples of a node, so that Prometheus can scrape the agent alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client import Metric

from perfd.collector import Column
from perfd.metrics.catalog import families, raw_metric
from perfd.metrics.exposition import entity_labels
from perfd.model import JobOrigin, RankPlacement, Record, SampleTable, Scope, job_labels

_STALE_AFTER_S = 60.0
"""Lost GPUs and failed collectors disappear from the exposition after this time."""

_MOST_KEPT = 64
"""Tables, and origins of jobs. What keeps changing must not fill the memory; the oldest are dropped."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LatestSamples:
    """Keeps the last table of each kind; a tap of the batcher. Any thread may call any method."""

    def __init__(self, node: str, columns: Iterable[Column]) -> None:
        self._node = node
        self._columns = {(column.scope, column.name): column for column in columns}
        self._lock = threading.Lock()
        self._tables: dict[tuple[object, ...], SampleTable] = {}
        self._ranks: dict[str, RankPlacement] = {}
        self._origins: dict[str, JobOrigin] = {}

    def __call__(self, records: Sequence[Record]) -> None:
        with self._lock:
            for record in records:
                if isinstance(record, SampleTable) and record.times_unix_ns:
                    # The work is left to the scrape: most agents are never scraped.
                    _put_newest(self._tables, (record.scope, *record.columns), record)
                elif isinstance(record, RankPlacement) and record.gpu is not None:
                    self._ranks[str(record.gpu)] = record
                elif isinstance(record, JobOrigin):
                    _put_newest(self._origins, record.job, record)

    def families(self, now_unix_ns: int) -> list[Metric]:
        """The newest value of each column of each GPU, device or rank that is not stale."""
        oldest_unix_ns = now_unix_ns - round(_STALE_AFTER_S * 1e9)
        with self._lock:
            tables, ranks, origins = list(self._tables.values()), dict(self._ranks), dict(self._origins)
        newest: dict[tuple[Scope, str], dict[str, tuple[int, float]]] = {}
        for table in tables:
            rows = {entity: row for row, entity in enumerate(table.entities)}
            for name, values in table.columns.items():
                column = newest.setdefault((table.scope, name), {})
                for entity, row in rows.items():
                    candidate = (table.times_unix_ns[row], values[row])
                    if candidate[0] >= max(oldest_unix_ns, column.get(entity, (0, 0.0))[0]):
                        column[entity] = candidate
        metrics = {key: raw_metric(self._column(*key)) for key in newest}
        described = {metric.name: metric for metric in metrics.values()}
        present = (
            # NaN is "absent" in a table.
            (
                metrics[key].name,
                self._labels(key[0], entity, ranks, origins),
                None if math.isnan(value) else value,
            )
            for key, column in newest.items()
            for entity, (_, value) in column.items()
        )
        return families(present, described.__getitem__)

    def _column(self, scope: Scope, name: str) -> Column:
        unknown = Column(
            scope=scope,
            name=name,
            help=f"The column {name} of a collector.",
            source="collector",
            absent="Its collector does not return it.",
        )
        return self._columns.get((scope, name), unknown)

    def _labels(
        self,
        scope: Scope,
        entity: str,
        ranks: Mapping[str, RankPlacement],
        origins: Mapping[str, JobOrigin],
    ) -> dict[str, str]:
        labels = entity_labels(scope, entity, self._node)
        placement = ranks.get(entity) if scope is Scope.GPU else None
        if placement is not None:
            labels |= {**job_labels(placement.job, origins.get(placement.job)), "rank": str(placement.rank)}
            labels["pod"] = placement.pod_name or ""
        return labels


def _put_newest(kept: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > _MOST_KEPT:
        kept.pop(next(iter(kept)))
