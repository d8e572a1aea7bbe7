"""Names of consumers that there were: nats-server 2.9 may keep one that only its name can remove again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfd.wire.subjects import spare_bucket

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

_MOST = 64
"""Names that are remembered, the newest: servers that were killed bring back consumers of some takeovers
before. Chosen."""


class KnownConsumers:
    """Those of one part of a cluster's messages, in memory and in the bucket of what its next reader needs.

    Without the bucket, as where there is no group, they are known to this process only.
    """

    def __init__(self, cluster: str, part: str) -> None:
        """`part` is the part's name; empty for all of the cluster's messages."""
        self._bucket_name = spare_bucket(cluster) if part else ""
        self._key = f"removed.{part}"
        self._names: dict[str, None] = {}

    async def note(self, js: JetStreamContext, names: Iterable[str]) -> None:
        """Remember names before these consumers are made or removed; whatever fails, they can be."""
        new = [name for name in names if name not in self._names]
        if not new:
            return
        known = dict.fromkeys([*await self._stored(js), *self._names, *new])
        self._names = dict.fromkeys(list(known)[-_MOST:])
        if self._bucket_name:
            with contextlib.suppress(Exception):
                await (await self._bucket(js)).put(self._key, json.dumps(list(self._names)).encode())

    async def names(self, js: JetStreamContext) -> list[str]:
        """All that this process or an earlier reader made or removed, the newest first."""
        return list(reversed(dict.fromkeys([*await self._stored(js), *self._names])))

    async def _stored(self, js: JetStreamContext) -> list[str]:
        if self._bucket_name:
            with contextlib.suppress(Exception):
                stored = json.loads((await (await self._bucket(js)).get(self._key)).value or b"[]")
                return [name for name in stored if isinstance(name, str)][-_MOST:]
        return []

    async def _bucket(self, js: JetStreamContext) -> KeyValue:
        return await js.key_value(self._bucket_name)
