"""What nodes were blamed for: taken from each round, kept in history, shown, and acted on if allowed."""

from perfd.aggregator.nodes.drain_runner import DrainRunner, drain_limits
from perfd.aggregator.nodes.node_documents import nodes_json
from perfd.aggregator.nodes.node_memory import NodeMemory

__all__ = ["DrainRunner", "NodeMemory", "drain_limits", "nodes_json"]
