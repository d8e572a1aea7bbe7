"""The disconnected agents, and since when."""

from __future__ import annotations

from collections.abc import Collection

_REMEMBERED_S = 3600.0
"""Short-lived machines have new names each time: without a limit the list would grow forever."""


class AgentPresence:
    """The nodes whose agent is disconnected."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def gone(self, node: str, now_unix_s: float) -> None:
        """An agent has just disconnected; only the first report for a node counts."""
        self._since.setdefault(node, now_unix_s)

    def back(self, node: str) -> None:
        """Its agent has reconnected."""
        self._since.pop(node, None)

    def away_s(self, node: str, now_unix_s: float) -> float | None:
        """How long its agent has been away; None if it is connected, or was forgotten."""
        since = self._since.get(node)
        return None if since is None else now_unix_s - since

    def forget(self, now_unix_s: float, awaited: Collection[str]) -> None:
        """Forget agents that have been away for an hour, except those that are `awaited`."""
        self._since = {
            node: since
            for node, since in self._since.items()
            if node in awaited or now_unix_s - since < _REMEMBERED_S
        }
