"""Serving engines as the JSON interface shows them, from what the nodes' collectors read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfd.aggregator.state import AggregatorState, NodeState
from perfd.model import Scope, ServerColumn

_LATENCIES = {
    latency: {
        statistic: ServerColumn(f"{latency}_{statistic}_s") for statistic in ("p50", "p90", "p99", "mean")
    }
    for latency in ("ttft", "tpot", "e2e", "queue")
}
_PLAIN = (
    ServerColumn.RUNNING_REQUESTS,
    ServerColumn.QUEUED_REQUESTS,
    ServerColumn.KV_CACHE_USED,
    ServerColumn.PREFIX_HIT,
    ServerColumn.GENERATION_TOKENS_PER_S,
    ServerColumn.PROMPT_TOKENS_PER_S,
    ServerColumn.GPU_BUSY,
    ServerColumn.CUDA_GRAPH,
    ServerColumn.REPLICA_IMBALANCE,
)
_PARALLEL = ("tp", "pp", "dp")
_THEORY = (
    ServerColumn.TPOT_FLOOR,
    ServerColumn.TPOT_THEORY,
    ServerColumn.TTFT_FLOOR,
    ServerColumn.MEMORY_BANDWIDTH_USED,
)


def servers_json(
    state: AggregatorState, alerts: Sequence[Mapping[str, Any]], now_s: float
) -> list[dict[str, Any]]:
    """Entries of schema perfd.servers/2, by node and name.

    A server whose readings are all old is there with every number unknown.
    """
    with state.lock:
        stale_after_s = state.fleet.limits.stale_after_s
        entries = [
            entry for node in state.fleet.nodes.values() for entry in _of_node(node, now_s, stale_after_s)
        ]
    return _with_findings(sorted(entries, key=lambda entry: (entry["node"], entry["server"])), alerts)


def _of_node(node: NodeState, now_s: float, stale_after_s: float) -> Iterator[dict[str, Any]]:
    readings = node.readings.get(Scope.SERVER)
    if readings is None:
        return
    metrics = readings.layout.metrics.known
    fresh = readings.fresh(now_s, stale_after_s)
    for server, row in zip(readings.layout.entities.known, fresh.tolist(), strict=True):
        known = {name: value for name, value in zip(metrics, row, strict=True) if math.isfinite(value)}
        yield _entry(node, server, known, now_s)


def _with_findings(
    entries: Sequence[Mapping[str, Any]], alerts: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    by_server: dict[tuple[str | None, str | None], list[Mapping[str, Any]]] = {}
    for alert in alerts:
        if alert["state"] == "firing":
            labels = alert["labels"]
            by_server.setdefault((labels.get("node"), labels.get("server")), []).append(alert)
    return [
        {
            **entry,
            "findings": [
                {
                    "name": alert["name"],
                    "summary": alert["annotations"].get("summary", ""),
                    "advice": alert["annotations"].get("description", ""),
                }
                for alert in by_server.get((entry["node"], entry["server"]), ())
            ],
        }
        for entry in entries
    ]


def _entry(node: NodeState, server: str, known: Mapping[str, float], now_s: float) -> dict[str, Any]:
    up = known.get(ServerColumn.UP)
    theory = {column.value: known.get(column) for column in _THEORY}
    info = node.server_infos.get(server)
    return {
        "node": node.name,
        "server": server,
        "engine": info.engine if info else None,
        "version": info.version if info else None,
        "model": info.model if info else None,
        "role": info.role if info else None,
        "parallel": {name: getattr(info.parallel, name) if info else None for name in _PARALLEL},
        "up": None if up is None else bool(up),
        "silent_s": max(0.0, now_s - node.received_s),
        **{column.value: known.get(column) for column in _PLAIN},
        **{
            f"{latency}_s": {statistic: known.get(column) for statistic, column in columns.items()}
            for latency, columns in _LATENCIES.items()
        },
        "theory": theory if any(value is not None for value in theory.values()) else None,
    }
