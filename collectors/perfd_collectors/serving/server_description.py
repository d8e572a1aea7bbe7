"""The description of a server as a record, sent on change and once per minute for new aggregators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfd.analysis.serving import Snapshot
from perfd.analysis.serving import server_config as engines
from perfd.model import ParallelLayout, ServerInfo, ServerRole

DESCRIBE_EVERY_S = 60.0
"""How often unchanged descriptions are repeated, for aggregators that start later. Chosen, not measured."""
_MAX_TEXT_CHARS = 256
"""Longer texts are dropped: labels of metrics have this limit, too."""
_MAX_PARALLEL_SIZE = 1 << 20
"""Larger parallel sizes are garbage."""
_ROLES = {
    "prefill": ServerRole.PREFILL,
    "decode": ServerRole.DECODE,
    "unified": ServerRole.BOTH,
    "null": ServerRole.BOTH,
}
"""SGLang's label `engine_type`, and its argument `disaggregation_mode`."""


def describe(server: str, snapshot: Snapshot, setup: engines.ServerSetup | None) -> ServerInfo:
    """The record of a server, from its newest snapshot and its configuration."""
    layout = setup.layout if setup else None
    return ServerInfo(
        server=server,
        engine=snapshot.engine.value,
        version=_text(snapshot.version),
        model=_text(snapshot.model),
        parallel=ParallelLayout(tp=_size(layout.tp), pp=_size(layout.pp), dp=_size(layout.dp))
        if layout
        else ParallelLayout(),
        role=_role(snapshot, setup),
    )


class ServerDescriptions:
    """Remembers the last sent description of each server."""

    def __init__(self) -> None:
        self._sent: Mapping[str, ServerInfo] = {}
        self._due_s = -math.inf

    def changed(self, found: Mapping[str, ServerInfo], now_s: float) -> Sequence[ServerInfo]:
        """The descriptions that changed since the last call; all of them once per minute."""
        due = now_s >= self._due_s
        if due:
            self._due_s = now_s + DESCRIBE_EVERY_S
        changed = [info for name, info in found.items() if due or self._sent.get(name) != info]
        self._sent = dict(found)
        return changed


def _role(snapshot: Snapshot, setup: engines.ServerSetup | None) -> ServerRole | None:
    names = set(snapshot.roles)
    if not names and setup is not None:
        names = {str(setup.arguments.get("disaggregation_mode"))}
    roles = {_ROLES[name] for name in names if name in _ROLES}
    if len(roles) > 1:
        return ServerRole.BOTH
    return next(iter(roles), None)


def _text(text: str | None) -> str | None:
    """A text if it can be sent and shown, else None: servers are untrusted."""
    return text if text and len(text) <= _MAX_TEXT_CHARS and text.isprintable() else None


def _size(size: int) -> int | None:
    return size if 0 < size <= _MAX_PARALLEL_SIZE else None
