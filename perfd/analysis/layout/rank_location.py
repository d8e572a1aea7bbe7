"""Where ranks are, and how fast they reach each other from there, by the hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints, JobData

PORTS = "the nodes' InfiniBand and RoCE ports, shared by their GPUs"
CONFIGURED = "analysis.network_bytes_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeeds:
    """One direction of what joins GPUs, by node; a node of which nothing is known is absent."""

    inside_bytes_per_s: Mapping[str, float]
    """Of the links between any two GPUs of a node."""
    network_bytes_per_s: Mapping[str, float]
    """A GPU's share of what leads out of the node."""
    network_source: str = CONFIGURED


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLocations:
    """One entry per rank; NaN is unknown."""

    node: Ints
    """The number of its node, -1 where it is unknown."""
    names: Sequence[str]
    """Of these nodes, by number."""
    inside_bytes_per_s: Floats
    network_bytes_per_s: Floats
    network_source: str

    def node_of(self, chosen: Ints) -> str | None:
        """The node of all these ranks, by place, and of no other; None without one, or with one rank."""
        numbers = np.unique(self.node[chosen])
        alone = len(numbers) == 1 and numbers[0] >= 0 and (self.node == numbers[0]).sum() == len(chosen) > 1
        return self.names[numbers[0]] if alone else None


def places(job: JobData, ranks: Ints, speeds: LinkSpeeds) -> RankLocations:
    """Where these ranks of a job are; they are in order."""
    node_of = {key.rank: key.node for key in job.gpu.gpus if key.rank is not None}
    node_of |= {placed.rank: node for node, all_placed in job.placements.items() for placed in all_placed}
    numbers = {node: number for number, node in enumerate(dict.fromkeys(node_of.values()))}
    reported = np.fromiter(node_of, dtype=np.int64, count=len(node_of))
    known_node = np.fromiter((numbers[node] for node in node_of.values()), dtype=np.int64, count=len(node_of))
    _, placed, of_known = np.intersect1d(ranks, reported, assume_unique=True, return_indices=True)
    node = np.full(len(ranks), -1)
    node[placed] = known_node[of_known]
    return RankLocations(
        node=node,
        names=tuple(numbers),
        inside_bytes_per_s=_of_node(speeds.inside_bytes_per_s, numbers)[node],
        network_bytes_per_s=_of_node(speeds.network_bytes_per_s, numbers)[node],
        network_source=speeds.network_source,
    )


def _of_node(speeds: Mapping[str, float], nodes: Iterable[str]) -> Floats:
    """By number of a node, NaN last: what is nowhere is at -1."""
    return np.array([*(speeds.get(node, np.nan) for node in nodes), np.nan])
