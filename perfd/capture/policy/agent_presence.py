"""Which agents are away, and since when."""

from __future__ import annotations

from collections.abc import Collection

_REMEMBERED_S = 3600.0
"""Machines that come and go have new names each time: those that nobody waits for would have no end."""


class AgentPresence:
    """The nodes whose agent has gone and not come back."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def gone(self, node: str, now_unix_s: float) -> None:
        """Remember a node whose agent has just gone; the first word counts."""
        self._since.setdefault(node, now_unix_s)

    def back(self, node: str) -> None:
        """Its agent was heard of."""
        self._since.pop(node, None)

    def away_s(self, node: str, now_unix_s: float) -> float | None:
        """How long its agent has been away; None if it is not, or so long that it is forgotten."""
        since = self._since.get(node)
        return None if since is None else now_unix_s - since

    def forget(self, now_unix_s: float, awaited: Collection[str]) -> None:
        """Forget who has been away for an hour, but for those that are `awaited`."""
        self._since = {
            node: since
            for node, since in self._since.items()
            if node in awaited or now_unix_s - since < _REMEMBERED_S
        }
