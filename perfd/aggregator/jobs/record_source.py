"""Where a record came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource:
    """Where a record came from and when: the agent's own clock for labels, ours for decisions."""

    agent_id: str
    node: str
    sent_unix_s: float
    now_s: float
    """Monotonic, ours."""
    late: bool = False
    """The batch filled a gap, so its records are older than what came before."""
    namespace: str | None = None
    """The one that the agent's credential limits it to; None: any."""
    member: bool = True
    """Whether the node is of the job that the record is about."""
