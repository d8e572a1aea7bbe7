"""Over how many nodes tensor-parallel groups lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from perfd.analysis.data.job_data import JobData
from perfd.model import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroups:
    """Where tensor parallelism is."""

    size: int
    """Ranks per group."""
    nodes: int
    """Nodes of the group that spans most of them."""
    gpus_per_node: int | None
    """Of the job, on the node with most; None where no GPU is seen."""


def tensor_groups(job: JobData, parallel: ParallelLayout) -> TensorGroups | None:
    """Where they are; None where the layout or all nodes are unknown.

    By the nodes of ranks in Megatron's order, in which a group's ranks are consecutive, else by how many GPUs
    of the job a node has.
    """
    if not parallel.tp:
        return None
    on_node = Counter(key.node for key in job.gpu.gpus)
    most = max(on_node.values(), default=None)
    if parallel.tp == 1:
        return TensorGroups(size=1, nodes=1, gpus_per_node=most)
    nodes = _widest(_node_of_rank(job), parallel.tp)
    if nodes is None:
        nodes = None if most is None else -(-parallel.tp // most)
    return None if nodes is None else TensorGroups(size=parallel.tp, nodes=nodes, gpus_per_node=most)


def _node_of_rank(job: JobData) -> Mapping[int, str]:
    node_of = {key.rank: key.node for key in job.gpu.gpus if key.rank is not None}
    return node_of | {placed.rank: node for node, placed_on in job.placements.items() for placed in placed_on}


def _widest(node_of: Mapping[int, str], size: int) -> int | None:
    """Of the groups whose ranks are all known."""
    groups: dict[int, list[str]] = {}
    for rank, node in node_of.items():
        groups.setdefault(rank // size, []).append(node)
    return max((len(set(nodes)) for nodes in groups.values() if len(nodes) == size), default=None)
