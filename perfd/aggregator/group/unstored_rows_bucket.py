"""Rows of partitions' histories in a NATS JetStream key-value bucket while the database takes none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from perfd.aggregator.group.fenced_values import FencedValues
from perfd.aggregator.partition import SpareRows
from perfd.config import NatsListenConfig
from perfd.errors import PerfdError
from perfd.net import LoopThread, NatsConnector
from perfd.wire.subjects import spare_bucket

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 2.0
"""For a request about the bucket, and for what an earlier holder kept: a takeover waits for it."""
_RETRY_S = 1.0
"""Longest pause between two attempts to connect. Chosen."""
_LOOK_EVERY_S = 0.02
"""For the first connection, while a partition starts."""
_STOP_WITHIN_S = 3.0
"""To write what is not written yet at the end."""
_HEADER_BYTES = 1024
"""Left of a message for its subject and headers, which have fewer."""


class SpareBucket:
    """Keeps one value per partition, from `start` to `stop`. Thread-safe.

    After another one has read a partition's value, what this one writes of it is refused.

    Where the bucket cannot be used, as without the permission, the group works without it.
    """

    def __init__(self, config: NatsListenConfig) -> None:
        self._connector = NatsConnector(config, key="nats", name="perfd aggregator spare")
        self._name = spare_bucket(config.cluster)
        self._replicas = config.replicas
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[bytes | None, Callable[[], None]]] = {}
        """What is to be kept of each partition, None for nothing, and what to call then."""
        self._values = FencedValues(self._name)
        self._changed: asyncio.Event | None = None
        self._written = threading.Condition(self._lock)
        self._js: JetStreamContext | None = None
        self._problem: str | None = None
        """Why the bucket cannot be used now; None also before it was tried."""
        self._worked = False
        """Whether it could be used before: then it can be soon again."""
        self._complained = set[str]()
        self._thread = LoopThread(self._run, name="perfd-spare")

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is not written yet, and end. Legal before the start."""
        with self._lock:
            if self._js is not None:
                self._written.wait_for(lambda: not self._pending, _STOP_WITHIN_S)
        self._thread.stop(_STOP_WITHIN_S)

    def of(self, partition: int, held: Callable[[], bool]) -> SpareRows:
        """That of one partition, which is written only while `held` returns True."""
        return _SpareRows(self, partition, held)

    def put(self, partition: int, body: bytes | None, kept: Callable[[], None] = lambda: None) -> None:
        """Keep this, soon, and call `kept` then; None removes what is kept."""
        with self._lock:
            self._pending[partition] = body, kept
        self._thread.submit(self._wake())

    def get(self, partition: int) -> bytes | None:
        """What is kept of a partition; raises `PerfdError` if it cannot be read now.

        None, after a while and with a warning, if it never could be.
        """
        found: Future[bytes | None] = Future()
        self._thread.submit(self._read(partition, found))
        try:
            return found.result(_ANSWER_WITHIN_S)
        except (TimeoutError, CancelledError):
            found.cancel()
            reason = "it does not answer"
        except Exception as error:  # noqa: BLE001  (whatever a library raises)
            reason = str(error)
        if self._worked:
            raise PerfdError(f"What the holder before could not store cannot be read from NATS: {reason}")
        self._complain(reason)
        return None

    def _complain(self, reason: str) -> None:
        if reason not in self._complained:
            self._complained.add(reason)
            log.warning(
                "What history does not take cannot be kept in NATS: an alert may be announced again if its "
                "partition moves while history is away.",
                extra={"bucket": self._name, "reason": reason},
            )

    async def _run(self) -> None:
        inbox = f"_INBOX_perfd_{secrets.token_hex(8)}"
        await self._connector.keep_connected(inbox, self._use, self._note_lost, last_retry_s=_RETRY_S)

    def _note_lost(self, reason: str) -> None:
        self._problem = reason

    async def _use(self, client: Client) -> None:
        self._changed = changed = asyncio.Event()
        js = client.jetstream(timeout=_ANSWER_WITHIN_S)
        await self._ensure_bucket(js)
        self._js, self._problem, self._worked = js, None, True
        try:
            while True:
                await self._write(client, js)
                await changed.wait()
                changed.clear()
        finally:
            self._js = None

    async def _ensure_bucket(self, js: JetStreamContext) -> None:
        from nats.js import api  # noqa: PLC0415  (with the extra only)
        from nats.js.errors import BucketNotFoundError, NotFoundError  # noqa: PLC0415

        try:
            await js.key_value(self._name)
        except (BucketNotFoundError, NotFoundError):
            await js.create_key_value(
                api.KeyValueConfig(
                    bucket=self._name,
                    description="What perfd's history does not take now, by partition.",
                    replicas=self._replicas,
                )
            )

    async def _write(self, client: Client, js: JetStreamContext) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._written.notify_all()
                    return
                partition, (body, kept) = next(iter(self._pending.items()))
            if body is not None and len(body) + _HEADER_BYTES > client.max_payload:
                self._complain(f"{len(body)} bytes are more than max_payload of the servers")
            elif await self._values.write(js, str(partition), body or b""):
                kept()
            else:
                self._complain("another aggregator continues with the partition")
            with self._lock:
                if self._pending.get(partition) == (body, kept):
                    del self._pending[partition]

    async def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _read(self, partition: int, found: Future[bytes | None]) -> None:
        # Only while a process starts.
        while self._js is None and self._problem is None and not found.cancelled():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        try:
            if self._js is None:
                raise PerfdError(self._problem or "it is not connected")  # noqa: TRY301  (for whoever waits)
            with self._lock:
                # Of an earlier lease of this process.
                self._pending.pop(partition, None)
            found.set_result(await self._values.read(self._js, str(partition)))
        except Exception as error:  # noqa: BLE001  (for whoever waits)
            with contextlib.suppress(Exception):
                found.set_exception(error)


class _SpareRows:
    def __init__(self, bucket: SpareBucket, partition: int, held: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._partition = partition
        self._held = held

    def keep(self, body: bytes, kept: Callable[[], None]) -> None:
        if self._held():
            self._bucket.put(self._partition, body, kept)

    def take(self) -> bytes | None:
        return self._bucket.get(self._partition)

    def clear(self) -> None:
        if self._held():
            self._bucket.put(self._partition, None)
