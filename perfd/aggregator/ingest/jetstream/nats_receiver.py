"""Reads from NATS JetStream what agents publish, and acknowledges it once it is stored."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.jetstream.direct_reading import DIRECT_ACKNOWLEDGMENT, DirectReading
from perfd.aggregator.ingest.jetstream.nats_intake import NatsIntake
from perfd.aggregator.ingest.jetstream.nats_reading import STREAM_ACKNOWLEDGMENT, NatsReading
from perfd.aggregator.ingest.jetstream.nats_sessions import NatsSessions
from perfd.aggregator.ingest.jetstream.nats_stream import (
    TAKE_OVER_AFTER_S,
    Readers,
    StreamMissingError,
    ensure_streams,
)
from perfd.aggregator.ingest.jetstream.stream_watch import StreamWatch
from perfd.aggregator.limits import NatsProgress
from perfd.aggregator.partition import Partition
from perfd.config import NatsListenConfig
from perfd.errors import PerfdError
from perfd.model import NodeMessage
from perfd.net import LoopThread, NatsConnector, end_tasks
from perfd.wire import subjects
from perfd.wire.convert import encode_message

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger(__name__)

_WATCH_ENDS_WITHIN_S = 0.2
"""What watches the reading has nothing to clean up. Chosen."""
_DIRECTLY_WITHIN_S = 3.0
"""A connection that brought a message without the stream so lately is in use: only the stream is silent. A
new one has as long for its first message: agents publish again within 1 s to 2 s."""
_RETRY_S = 0.3
"""To the next attempt to read through the stream on such a connection. Chosen."""
_STOP_WITHIN_S = 3.0
"""For the thread's end, and half of it to acknowledge what is stored."""
_MOST_COMPLAINTS = 8
"""Different reasons that are logged during one outage, so that it does not fill the log."""


class NatsReceiver:
    """Reads in its own thread from `start` to `stop`; raises `ConfigError` if `config` cannot work.

    Servers that cannot be reached are tried again without end. While another aggregator reads the messages
    of the same cluster it waits.
    """

    def __init__(
        self,
        config: NatsListenConfig,
        intake: Ingest,
        partition: Partition | None = None,
        *,
        caught_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`caught_up` is called when it has taken what waited before it began to read, or the newest."""
        self._caught_up = caught_up
        self._config = config
        self._connector = NatsConnector(config, key="nats", name="perfd aggregator")
        self._sessions = NatsSessions(intake, config.cluster, time.monotonic)
        self._subject: str | None = None
        """Of what may be taken without the stream: what an earlier holder of a lease stores is refused."""
        self._turn = asyncio.Lock()
        if partition is None:
            self._readers = Readers(config, subjects.from_agents(config.cluster), TAKE_OVER_AFTER_S)
        else:
            own = self._subject = subjects.from_partition(config.cluster, partition.number, partition.count)
            # This lease proves that the previous reader's has ended.
            self._readers = Readers(
                config, own, 0.0, partition.held, name=f"{partition.number}of{partition.count}"
            )
        # The jobs of a partition have no other reader meanwhile.
        self._last_retry_s = 15.0 if partition is None else 1.0
        self.progress = NatsProgress()
        self._client: Client | None = None
        self._streams_exist = False
        """Not asked at each connection: the stream of refused messages may have no leader at that moment."""
        self._complaints: set[str] = set()
        self._thread = LoopThread(self._run, name="perfd-nats")

    def start(self) -> None:
        """Begin to connect."""
        # The stream has its time, and then delivers in order what waits in it.
        self.progress.delivered_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; messages that are not acknowledged are delivered again. Safe at any time."""
        self._thread.stop(_STOP_WITHIN_S)

    def send(self, node: str, message: NodeMessage) -> None:
        """Publish a message for the agent of a node, from any thread; nothing when it has no session."""
        if (subject := self._sessions.subject_of(node)) is not None:
            self._thread.submit(self._publish(subject, encode_message(message)))

    async def _run(self) -> None:
        inbox = f"_INBOX_perfd_{secrets.token_hex(8)}"
        try:
            await self._connector.keep_connected(
                inbox, self._use, self._note_lost, last_retry_s=self._last_retry_s
            )
        finally:
            self.progress.reading = False
            self._sessions.close_all()

    def _note_lost(self, reason: str) -> None:
        if self.progress.reading:
            self.progress.reading = False
            self.progress.interruptions += 1
            self._complaints.clear()
        # Each reason once: the first one is often only that the connection ended.
        if reason not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(reason)
            log.warning(
                "Batches are not read from NATS now; they wait there.",
                extra={"servers": ", ".join(self._config.servers), "reason": reason},
            )
        self._sessions.close_silent()

    async def _use(self, client: Client) -> None:
        """Read until canceled; raises `PerfdError` if a new connection may do better."""
        self._client = client
        direct = stuck = None
        if self._subject is not None:
            stuck = asyncio.create_task(StreamWatch(client, self._readers, self.progress).run())
            intake = NatsIntake(client, self._sessions, self.progress, self._turn, DIRECT_ACKNOWLEDGMENT)
            reading = DirectReading(client, self._subject, intake, self.progress, began=self._caught_up)
            direct = asyncio.create_task(reading.run())
        try:
            await self._read(client, direct)
        finally:
            self._client = None
            beside = [task for task in (direct, stuck) if task is not None]
            await end_tasks(*beside, again_after_s=_WATCH_ENDS_WITHIN_S)
            if self._thread.stopping:
                # The connection is still open, and the next aggregator need not wait.
                async with asyncio.timeout(_STOP_WITHIN_S / 2):
                    await self._readers.close(client)

    async def _read(self, client: Client, direct: asyncio.Task[None] | None) -> None:
        """Read through one consumer after the other, on this connection as long as it brings messages.

        Each attempt may fail at once, as while the lease cannot be renewed.
        """
        connected_s = time.monotonic()
        while True:
            try:
                await self._read_consumer(client)
            except Exception as error:
                used_s = max(connected_s, self.progress.took_directly_s)
                if direct is None or direct.done() or time.monotonic() - used_s > _DIRECTLY_WITHIN_S:
                    raise
                self._note_lost(str(error))
                await asyncio.sleep(_RETRY_S)

    async def _read_consumer(self, client: Client) -> None:
        """Read through one consumer until messages have to be delivered again; raises if it is gone."""
        if not self._streams_exist:
            await ensure_streams(client.jetstream(), self._config)
            self._streams_exist = True
        consumer = await self._open(client)
        reading = NatsReading(
            client,
            self._config,
            consumer,
            NatsIntake(client, self._sessions, self.progress, self._turn, STREAM_ACKNOWLEDGMENT),
            caught_up=self._caught_up,
        )
        watching = asyncio.create_task(self._readers.watch(client, lambda: self.progress.received_messages))
        try:
            reason = await reading.run()
        finally:
            await end_tasks(watching, again_after_s=_WATCH_ENDS_WITHIN_S)
        if reason:
            raise PerfdError(reason)

    async def _open(self, client: Client) -> str:
        from nats.js.errors import NotFoundError  # noqa: PLC0415  (with the extra only)

        try:
            return await self._readers.open(client)
        except (StreamMissingError, NotFoundError):
            self._streams_exist = False
            raise

    async def _publish(self, subject: str, data: bytes) -> None:
        if self._client is not None and self._client.is_connected:
            await self._client.publish(subject, data)
