"""Values in a NATS JetStream key-value bucket that only the process which read them last can replace."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from perfd.errors import PerfdError

if TYPE_CHECKING:
    from nats.js import JetStreamContext

_WRONG_REVISION = 10071
"""Code of the server's error when another message of the subject came in between."""
_READS = 5
"""In a row, while another process writes. Chosen: it writes once a second."""
_EXPECTED, _READER = "Nats-Expected-Last-Subject-Sequence", "Perfd-Reader"


class FencedValues:
    """For one event loop only. What the bucket's servers or a library raise comes through."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._readers: dict[str, tuple[str, int]] = {}
        """Of each key: what this process signs with since it read it, and the newest revision."""

    async def read(self, js: JetStreamContext, key: str) -> bytes | None:
        """The value, None for none; from now on what earlier readers write is refused."""
        reader = secrets.token_hex(8)
        for _ in range(_READS):
            body, _, revision = await self._newest(js, key)
            written = await self._put(js, key, body, reader, revision)
            if written is not None:
                self._readers[key] = reader, written
                return body or None
        raise PerfdError("NATS: another aggregator writes what this one wants to read.")

    async def write(self, js: JetStreamContext, key: str, body: bytes) -> bool:
        """Replace the value; False if another process has read it since."""
        if key not in self._readers:
            await self.read(js, key)
        reader, revision = self._readers[key]
        written = await self._put(js, key, body, reader, revision)
        if written is None:
            _, newest_reader, newest = await self._newest(js, key)
            if newest_reader != reader:
                return False
            # The answer to the last write was lost.
            written = await self._put(js, key, body, reader, newest)
        if written is None:
            return False
        self._readers[key] = reader, written
        return True

    async def _newest(self, js: JetStreamContext, key: str) -> tuple[bytes, str, int]:
        from nats.js.errors import NotFoundError  # noqa: PLC0415  (with the extra only)

        try:
            # Of the leader: other servers may not have the newest value yet.
            found = await js.get_last_msg(f"KV_{self._bucket}", self._subject(key))
        except NotFoundError:
            return b"", "", 0
        return found.data or b"", (found.headers or {}).get(_READER, ""), found.seq or 0

    async def _put(
        self, js: JetStreamContext, key: str, body: bytes, reader: str, revision: int
    ) -> int | None:
        """Write a value after this revision; returns its own, None if there is a newer one."""
        from nats.js.errors import APIError  # noqa: PLC0415  (with the extra only)

        headers = {_EXPECTED: str(revision), _READER: reader}
        try:
            return (await js.publish(self._subject(key), body, headers=headers)).seq
        except APIError as error:
            if error.err_code == _WRONG_REVISION:
                return None
            raise

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{key}"
