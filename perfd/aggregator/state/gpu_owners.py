"""Which jobs each GPU of a node serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfd.aggregator.jobs import JobRegistry, JobState
from perfd.aggregator.state.node_state import NodeState

Labels = dict[str, str]
GpuOwners = dict[str, dict[str, int | None]]
"""For each GPU of a node that serves jobs: the jobs, with the rank of each if it is known.

Several jobs share a GPU by MPS or time slicing.
"""
_MOST_SHARED_CHARS = 256
"""Chosen: some twenty names; the label is for people."""


def gpu_owners(node: NodeState, jobs: JobRegistry) -> GpuOwners:
    """The owners by placements.

    GPUs without one belong to the node's only job, unless all ranks of that job have theirs: the others may
    run work that perfd does not see.
    """
    owners = dict(node.placed_owners())
    for gpu, ranks in owners.items():
        if len(ranks) > 1:
            owners[gpu] = {job: rank for job, rank in ranks.items() if job in jobs and not jobs[job].ended}
    owners |= _slice_owners(node)
    others = [gpu for gpu in node.readings.gpus if gpu not in owners]
    only = jobs.only_on(node.name) if others else None
    if only is not None and not _all_placed(only, node, jobs):
        owners |= {gpu: {only: None} for gpu in others}
    return owners


def _slice_owners(node: NodeState) -> GpuOwners:
    """The owners of MIG slices: the ranks of the pod that has the slice, as placements name whole GPUs."""
    owners: GpuOwners = {}
    for entity in node.readings.gpus:
        if "/" not in entity or (container := node.container_of(entity)) is None:
            continue
        found = [key for key, placement in node.placements.items() if placement.pod_name == container.pod]
        if len({job for job, _ in found}) == 1:
            job, rank = found[0]
            owners[entity] = {job: rank if len(found) == 1 else None}
    return owners


def gpu_labels(node: NodeState, entity: str, owners: Mapping[str, int | None], jobs: JobRegistry) -> Labels:
    """Job, rank and container of a GPU, if known; the namespace of a job is its own.

    A GPU of several jobs is none's: it has one series, so that sums count it once, and lists them.
    """
    container = node.container_of(entity)
    labels = {}
    if container is not None:
        labels = {
            "namespace": container.namespace,
            "pod": container.pod,
            "container": container.container,
        }
    if not owners:
        return labels
    if len(owners) > 1:
        return labels | {"shared_by": ", ".join(sorted(owners))[:_MOST_SHARED_CHARS]}
    ((job, rank),) = owners.items()
    # Rules join GPUs and their job on the namespace: both have the job's, or none.
    labels |= {"namespace": "", **jobs.labels(job), "rank": "" if rank is None else str(rank)}
    placed = node.placements.get((job, rank)) if rank is not None else None
    if placed is not None and placed.pod_name:
        labels.setdefault("pod", placed.pod_name)
    return labels


def exported_gpu_owners(node: NodeState, jobs: JobRegistry) -> GpuOwners:
    """Of these, the jobs that have series."""
    return {
        gpu: exported
        for gpu, owners in gpu_owners(node, jobs).items()
        if (exported := {job: rank for job, rank in owners.items() if jobs[job].exported})
    }


def _all_placed(name: str, node: NodeState, jobs: JobRegistry) -> bool:
    """Whether all ranks of a job are on this node, and on which of its GPUs is known."""
    placed = [one for (job, _), one in node.placements.items() if job == name and one.gpu is not None]
    job = jobs.get(name)
    worlds = [*(one.world_size for one in placed), job.world_size if job is not None else None]
    world = next((world for world in worlds if world), None)
    return world is not None and len(placed) >= world


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
