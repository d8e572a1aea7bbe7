"""Where ranks are, and how fast they reach each other from there, as far as the hardware tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfd.analysis.tables import Floats, JobData

PORTS = "the nodes' InfiniBand and RoCE ports, shared by their GPUs"
TOLD = "analysis.network_bytes_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """One direction of what joins GPUs, by node; a node of which nothing is known is absent."""

    inside_bytes_per_s: Mapping[str, float]
    """Of the links between any two GPUs of a node."""
    network_bytes_per_s: Mapping[str, float]
    """A GPU's share of what leads out of the node."""
    network_source: str = TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """One entry a rank; NaN is unknown."""

    node: Floats
    """The number of its node, -1 where it is unknown."""
    inside_bytes_per_s: Floats
    network_bytes_per_s: Floats
    network_source: str


def places(job: JobData, world: int, speeds: Speeds) -> Places:
    """Where the ranks 0 to `world` - 1 of a job are."""
    found = np.full((3, world), np.nan)
    found[0] = -1
    numbers: dict[str, int] = {}
    nodes = [(key.rank, key.node) for key in job.gpu.gpus if key.rank is not None]
    nodes += [(placed.rank, node) for node, all_placed in job.placements.items() for placed in all_placed]
    for rank, node in nodes:
        if rank < world:
            found[0, rank] = numbers.setdefault(node, len(numbers))
            found[1, rank] = speeds.inside_bytes_per_s.get(node, np.nan)
            found[2, rank] = speeds.network_bytes_per_s.get(node, np.nan)
    return Places(
        node=found[0],
        inside_bytes_per_s=found[1],
        network_bytes_per_s=found[2],
        network_source=speeds.network_source,
    )
