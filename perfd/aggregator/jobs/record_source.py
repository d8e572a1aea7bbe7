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

    def made_unix_s(self, time_unix_ns: int | None) -> float:
        """When a record was made that has this time; when it was sent, if it has none."""
        return self.sent_unix_s if time_unix_ns is None else time_unix_ns / 1e9
