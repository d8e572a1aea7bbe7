"""The memory of nodes as JSON: schema perfd.nodes/1."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from perfd.formatting import printable_text
from perfd.nodes import Drain, Incident, NodeStanding, Scheduler, Standing, drain_command, reason_of

_MOST_INCIDENTS = 20
"""Of a node, the newest; `incident_count` counts all."""


def nodes_json(
    found: Iterable[NodeStanding],
    drains: Sequence[Drain],
    *,
    blamed_only: bool = True,
    node: str | None = None,
) -> list[dict[str, Any]]:
    """Entries of schema perfd.nodes/1, the most suspect first, by default only nodes that were blamed."""
    drained = {one.node: one for one in drains}
    return [
        _node(one, drained.get(one.node))
        for one in found
        if (one.node == node if node is not None else one.incidents or not blamed_only)
    ]


def _node(one: NodeStanding, drain: Drain | None) -> dict[str, Any]:
    return {
        "node": one.node,
        "kind": one.kind or None,
        "scheduler": one.scheduler.value if one.scheduler else None,
        "suspect": one.suspect,
        "suspect_ratio": one.suspect_ratio,
        "lost_gpu_h": one.lost_gpu_h,
        "jobs": one.jobs,
        **_standing(one.whole),
        "gpus": [{"gpu": gpu.gpu, **_standing(gpu), "suspect_ratio": gpu.suspect_ratio} for gpu in one.gpus],
        "incident_count": len(one.incidents),
        "incident_list": [_incident(incident) for incident in one.incidents[:_MOST_INCIDENTS]],
        "reason": reason_of(one) if one.incidents else None,
        "advice": _advice(one),
        "drain": None
        if drain is None
        else {
            "unix_s": drain.unix_s,
            "outcome": drain.outcome or "running",
            "command": shlex.join(drain.command),
        },
    }


def _standing(one: Standing) -> dict[str, Any]:
    return {
        "incidents": one.incidents,
        "expected_incidents": one.expected,
        "observed_gpu_h": one.observed_gpu_h,
        "peers": one.peers,
    }


def _incident(one: Incident) -> dict[str, Any]:
    return {
        "kind": one.kind.value,
        "gpu": one.gpu or None,
        "job": one.job or None,
        "attempt": one.attempt or None,
        "first_unix_s": one.first_unix_s,
        "last_unix_s": one.last_unix_s,
        "seen_s": one.seen_s,
        "count": one.count,
        "lost_gpu_h": one.lost_gpu_s / 3600,
        "evidence": one.evidence,
    }


def _advice(one: NodeStanding) -> list[dict[str, str]]:
    """Commands to copy: of the node's scheduler, or of each where that is not known."""
    if not one.suspect:
        return []
    reason = printable_text(reason_of(one))
    commands = {
        scheduler: drain_command(one.node, scheduler, reason)
        for scheduler in ([one.scheduler] if one.scheduler else Scheduler)
    }
    return [
        {"scheduler": scheduler.value, "command": shlex.join(command)}
        for scheduler, command in commands.items()
        if command is not None
    ]
