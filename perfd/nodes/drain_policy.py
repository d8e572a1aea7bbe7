"""Which suspects perfd takes out of scheduling itself, where an operator switched that on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfd.nodes.drain_advice import drain_command, reason_of
from perfd.nodes.node_ledger import Scheduler
from perfd.nodes.suspicion import NodeStanding

_DAY_S = 86_400.0
"""Drained nodes are counted per day."""
DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """What an operator allows."""

    scheduler: Scheduler
    nodes_per_day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A node that was taken out of scheduling, or should be."""

    node: str
    command: tuple[str, ...]
    reason: str
    unix_s: float
    outcome: str = ""
    """`done`, or why it failed; empty while it runs."""


def drains_due(
    suspects: Iterable[NodeStanding], past: Sequence[Drain], limits: DrainLimits, now_unix_s: float
) -> list[Drain]:
    """What to do now, the most suspect first.

    A node that was drained is drained again only for an incident that began later: an operator who put it
    back has decided about those before. A command that failed counts for the day's limit, too, and is tried
    again a day later.
    """
    # A clock that was set back makes no room for more.
    today = [one for one in past if now_unix_s - one.unix_s < _DAY_S]
    left = limits.nodes_per_day - len(today)
    tried = {one.node for one in today}
    drained_unix_s = {one.node: one.unix_s for one in past if one.outcome == DONE}
    due: list[Drain] = []
    for one in suspects:
        if len(due) >= left:
            break
        began = max((incident.first_unix_s for incident in one.incidents), default=0.0)
        if not one.suspect or one.node in tried or began <= drained_unix_s.get(one.node, -1.0):
            continue
        reason = reason_of(one)
        command = drain_command(one.node, limits.scheduler, reason)
        if command is not None:
            due.append(Drain(node=one.node, command=command, reason=reason, unix_s=now_unix_s))
    return due
