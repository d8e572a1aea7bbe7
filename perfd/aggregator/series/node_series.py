"""Which series the readings of a node are."""

from __future__ import annotations

from collections.abc import Iterable

from perfd.aggregator.jobs import JobRegistry
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.state import NodeState
from perfd.aggregator.state.gpu_owners import exported_gpu_owners, gpu_labels
from perfd.metrics.exposition import entity_labels
from perfd.metrics.series import SeriesKey
from perfd.model import Scope


def node_keys(names: MetricNames, node: NodeState, jobs: JobRegistry) -> Iterable[SeriesKey]:
    """The series of one node's readings: by scope, then by entity, then by metric."""
    owners = exported_gpu_owners(node, jobs)
    for scope, readings in node.readings.items():
        exported = [names.exported(scope, column) for column in readings.layout.metrics.known]
        for entity in readings.layout.entities.known:
            labels = entity_labels(scope, entity, node.name)
            if scope is Scope.GPU:
                labels |= gpu_labels(node, entity, owners.get(entity, {}), jobs)
            elif scope is Scope.RANK:
                labels |= jobs.labels(entity.rpartition("/")[0])
            # The labels are sorted once for an entity, not once for each of its metrics.
            sorted_labels = SeriesKey.of("", labels).labels
            for name in exported:
                yield SeriesKey(name, sorted_labels)
