"""What bus bandwidth a group could reach by where its ranks are, and whether its messages are large enough.

By the ring formula (nccl-tests, doc/PERFORMANCE.md): all data passes every link of the ring, so bus bandwidth
is that of the slowest one. Over several nodes that is the way out of the node with the fewest of the
group's GPUs. NVLink SHARP and trees send less, and may be faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import over_last
from perfd.analysis.layout import PAIR_OPERATION, RankLocations
from perfd.analysis.operations.bus_factor import bus_factor
from perfd.analysis.operations.communicator_waits import CommunicatorBatch

_RING_S, _TREE_S = 6.6e-6, 6.8e-6
_HOP_S = 0.6e-6
_HOP_OF_MANY_S = 1.8 * _HOP_S
"""Inside a node, in groups of several nodes."""
_RING_NETWORK_S, _TREE_NETWORK_S = 2.7e-6, 5.0e-6
"""What NCCL itself assumes for its fastest protocol over NVLink (2.28.7, `ncclTopoTuneModel` in
src/graph/tuning.cc): a base, and a part for each hop. The base includes launching the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthModel:
    """By communicator; NaN is unknown."""

    bus_bytes_per_s: Floats
    """What its links allow for messages of any size."""
    latency_s: Floats
    """What an operation takes however small it is."""
    bus_factor: float
    """What one byte of a message is to bus bandwidth."""
    crossing: Bools
    """Whether it goes over the network."""
    network_source: str

    def source(self, row: int) -> str | None:
        """Where the bandwidth is from, in words."""
        if math.isnan(self.bus_bytes_per_s.item(row)):
            return None
        return self.network_source if self.crossing[row] else "NVLink between its GPUs, one direction"

    def latency_bound(self, size_bytes: Floats) -> Bools:
        """Whether messages of that size, one a communicator, need more time for latency than to move."""
        return size_bytes * self.bus_factor / self.bus_bytes_per_s < self.latency_s


def expected_of(stack: CommunicatorBatch, where: RankLocations) -> BandwidthModel:
    """What the communicators of a stack could reach."""
    nodes = where.node[stack.ranks]
    first, last = over_last(np.minimum, nodes), over_last(np.maximum, nodes)
    known = first >= 0
    crossing = known & (first != last)
    inside = over_last(np.minimum, where.inside_bytes_per_s[stack.ranks])
    bandwidth = np.where(known, inside, np.nan)
    spans, fewest, most = _spread(np.sort(nodes[crossing], axis=1))
    bandwidth[crossing] = _over_nodes(
        stack.operation,
        stack.ranks.shape[1],
        (fewest, most),
        inside[crossing],
        over_last(np.minimum, where.network_bytes_per_s[stack.ranks[crossing]]),
    )
    node_count = np.where(known, 1.0, np.nan)
    node_count[crossing] = spans
    return BandwidthModel(
        bus_bytes_per_s=bandwidth,
        latency_s=_latency_s(stack.operation, stack.ranks.shape[1], node_count),
        bus_factor=bus_factor(stack.operation, stack.ranks.shape[1]),
        crossing=crossing,
        network_source=where.network_source,
    )


def _spread(nodes: Ints) -> tuple[Floats, Floats, Floats]:
    """How many nodes each row of ordered numbers spans, and the fewest and most of its ranks on one."""
    first = np.ones(nodes.shape, dtype=np.bool_)
    first[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, nodes.size)).astype(np.float64)
    spans = first.sum(axis=1)
    if not len(spans):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    rows = np.append(0, np.cumsum(spans)[:-1])
    return spans.astype(np.float64), np.minimum.reduceat(lengths, rows), np.maximum.reduceat(lengths, rows)


def _over_nodes(
    operation: str, ranks: int, on_node: tuple[Floats, Floats], inside: Floats, network: Floats
) -> Floats:
    fewest, most = on_node
    if operation == PAIR_OPERATION:
        return network
    if operation == "AlltoAll":
        # A GPU sends (ranks - those of its node) / ranks of its data by its own share of the network.
        return network * (ranks - 1) / (ranks - fewest)
    ring = fewest * network
    return np.where(most > 1, np.minimum(inside, ring), ring)


def _latency_s(operation: str, ranks: int, nodes: Floats) -> Floats:
    """Of the faster of ring and tree; a tree is for all-reduce only."""
    hop = np.where(nodes > 1, _HOP_OF_MANY_S, _HOP_S)
    if operation in {PAIR_OPERATION, "AlltoAll"}:
        return _RING_S + np.where(nodes > 1, _RING_NETWORK_S, hop)
    rounds = 2 if operation == "AllReduce" else 1
    ring = _RING_S + rounds * ((ranks - nodes) * hop + (nodes - 1) * _RING_NETWORK_S)
    if operation != "AllReduce":
        return ring
    tree = _TREE_S + 2 * ((ranks / nodes - 1) * hop + np.floor(np.log2(nodes)) * _TREE_NETWORK_S)
    return np.fmin(ring, tree)
