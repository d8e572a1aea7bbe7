"""GPUs per rank where jobs share GPUs by MPS, time slicing or MIG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfd.aggregator.jobs import JobState
from perfd.aggregator.state.node_state import NodeState


def gpus_per_rank(
    jobs: Iterable[tuple[JobState, int]], nodes: Mapping[str, NodeState]
) -> Mapping[str, float]:
    """GPUs per rank by job name, 1 unless ranks share GPUs. `jobs` are running jobs with their rank counts.

    If a node has more ranks than GPUs, each rank gets an equal share, so that all jobs together count each
    GPU once. MIG slices are part of their GPU. A job's ranks are assumed to be spread evenly over its nodes;
    a job whose ranks on a node are all placed without a GPU uses none there.
    """
    on_nodes: dict[str, dict[str, float]] = {}
    for job, ranks in jobs:
        for node in job.nodes:
            if node in nodes and not _without_gpu(nodes[node], job.name):
                on_nodes.setdefault(node, {})[job.name] = ranks / len(job.nodes)
    parts: dict[str, list[float]] = {}
    for node, ranks_of in on_nodes.items():
        gpus = sum(not info.mig for info in nodes[node].gpu_infos.values())
        total = sum(ranks_of.values())
        for name in ranks_of:
            parts.setdefault(name, []).append(min(1.0, gpus / total) if gpus and total else 1.0)
    return {name: sum(found) / len(found) for name, found in parts.items()}


def _without_gpu(node: NodeState, job: str) -> bool:
    placed = [one.gpu for (name, _), one in node.placements.items() if name == job]
    return bool(placed) and all(gpu is None for gpu in placed)
