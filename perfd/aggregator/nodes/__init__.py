"""The state of one node: its GPUs, servers, placements, and the newest samples of its collectors."""

from perfd.aggregator.nodes.node_state import NodeState

__all__ = ["NodeState"]
