"""What a server is, as a record: told when it changes, and now and then for an aggregator that came late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfd.analysis.serving import Snapshot
from perfd.analysis.serving import server_config as engines
from perfd.model import ParallelLayout, ServerInfo, ServerRole

DESCRIBE_EVERY_S = 60.0
_MOST_CHARS = 256
_MOST_GPUS = 1 << 20
_ROLES = {
    "prefill": ServerRole.PREFILL,
    "decode": ServerRole.DECODE,
    "unified": ServerRole.BOTH,
    "null": ServerRole.BOTH,
}
"""SGLang's label `engine_type`, and its argument `disaggregation_mode`."""


def describe(server: str, snapshot: Snapshot, said: engines.ServerSetup | None) -> ServerInfo:
    """The record of a server, from its newest look and from what it said about itself."""
    layout = said.layout if said else None
    return ServerInfo(
        server=server,
        engine=snapshot.engine.value,
        version=_text(snapshot.version),
        model=_text(snapshot.model),
        parallel=ParallelLayout(tp=_size(layout.tp), pp=_size(layout.pp), dp=_size(layout.dp))
        if layout
        else ParallelLayout(),
        role=_role(snapshot, said),
    )


class ServerDescriptions:
    """Remembers what was told of each server."""

    def __init__(self) -> None:
        self._told: Mapping[str, ServerInfo] = {}
        self._due_s = -math.inf

    def news(self, found: Mapping[str, ServerInfo], now_s: float) -> Sequence[ServerInfo]:
        """Those that are not what was told last; all of them once a minute."""
        due = now_s >= self._due_s
        if due:
            self._due_s = now_s + DESCRIBE_EVERY_S
        news = [info for name, info in found.items() if due or self._told.get(name) != info]
        self._told = dict(found)
        return news


def _role(snapshot: Snapshot, said: engines.ServerSetup | None) -> ServerRole | None:
    names = set(snapshot.roles)
    if not names and said is not None:
        names = {str(said.arguments.get("disaggregation_mode"))}
    roles = {_ROLES[name] for name in names if name in _ROLES}
    if len(roles) > 1:
        return ServerRole.BOTH
    return next(iter(roles), None)


def _text(text: str | None) -> str | None:
    """What can be sent and shown; a server may say anything."""
    return text if text and len(text) <= _MOST_CHARS and text.isprintable() else None


def _size(size: int) -> int | None:
    return size if 0 < size <= _MOST_GPUS else None
