"""The readings of a node as series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfd.aggregator.jobs import JobRegistry
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.series.series_blocks import Block, Blocks
from perfd.aggregator.state import NodeState
from perfd.aggregator.state.gpu_owners import exported_gpu_owners
from perfd.analysis.data.job_data import Floats
from perfd.metrics.exposition import entity_labels
from perfd.metrics.series import SeriesKey
from perfd.model import Scope


def node_block(
    blocks: Blocks,
    names: MetricNames,
    node: NodeState,
    jobs: JobRegistry,
    values: Mapping[Scope, Floats],
) -> tuple[tuple[str, ...], Block]:
    """The raw series of one node, with the name of the block. `values` is entities by metrics by scope."""

    def keys() -> Sequence[SeriesKey]:
        return list(_raw_keys(names, node, exported_gpu_owners(node, jobs)))

    name = ("node", node.name, str(node.version))
    flat = [values[scope].ravel() for scope in node.readings]
    return name, blocks.cached(name, np.concatenate(flat) if flat else np.zeros(0), keys)


def _raw_keys(
    names: MetricNames, node: NodeState, owners: Mapping[str, tuple[str, int | None]]
) -> Iterable[SeriesKey]:
    for scope, readings in node.readings.items():
        exported = [names.exported(scope, column) for column in readings.layout.metrics.known]
        for entity in readings.layout.entities.known:
            labels = entity_labels(scope, entity, node.name)
            if scope is Scope.GPU and entity in owners:
                job, rank = owners[entity]
                labels |= {"job": job, "rank": "" if rank is None else str(rank)}
            # The labels are sorted once for an entity, not once for each of its metrics.
            sorted_labels = SeriesKey.of("", labels).labels
            for name in exported:
                yield SeriesKey(name, sorted_labels)
