"""Reads from NATS JetStream what agents publish, and acknowledges it once it is stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING

from perfd.aggregator.ingest.agent_messages import AgentEvents
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.nats_reading import NatsReading
from perfd.aggregator.ingest.nats_sessions import NatsSessions
from perfd.aggregator.ingest.nats_stream import TAKE_OVER_AFTER_S, Readers, ensure_streams
from perfd.aggregator.limits import NatsProgress
from perfd.aggregator.partition import Partition
from perfd.config import NatsListenConfig
from perfd.errors import PerfdError, reason_of
from perfd.model import CaptureCancel, CaptureRequest
from perfd.net import NatsConnector
from perfd.wire import subjects
from perfd.wire.convert import encode_message

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 15.0
_STOP_WITHIN_S = 3.0


class NatsReceiver:
    """Reads in its own thread from `start` to `stop`; raises `ConfigError` if `config` cannot work.

    Servers that cannot be reached are tried again without end. While another aggregator reads the messages
    of the same cluster it waits.
    """

    def __init__(
        self,
        config: NatsListenConfig,
        intake: Ingest,
        events: AgentEvents,
        partition: Partition | None = None,
    ) -> None:
        self._config = config
        self._connector = NatsConnector(config, key="nats", name="perfd aggregator")
        self._sessions = NatsSessions(intake, events, config.cluster, time.monotonic)
        if partition is None:
            self._readers = Readers(config, subjects.from_agents(config.cluster), TAKE_OVER_AFTER_S)
        else:
            own = subjects.from_partition(config.cluster, partition.number, partition.count)
            # This lease proves that the previous reader's has ended.
            self._readers = Readers(config, own, 0.0, partition.held)
        self.progress = NatsProgress()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._ended: asyncio.Future[str] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfd-nats", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; messages that are not acknowledged are delivered again. Safe at any time."""
        self._stopping.set()
        if not self._thread.is_alive():
            return
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # It has ended.
                loop.call_soon_threadsafe(self._end, "the aggregator stops")
        self._thread.join(_STOP_WITHIN_S)

    def send(self, node: str, message: CaptureRequest | CaptureCancel) -> None:
        """Publish a message for the agent of a node, from any thread; nothing when it has no session."""
        subject, loop = self._sessions.subject_of(node), self._loop
        if subject is None or loop is None:
            return
        publishing = self._publish(subject, encode_message(message))
        try:
            asyncio.run_coroutine_threadsafe(publishing, loop)
        except RuntimeError:  # The loop has ended.
            publishing.close()

    def _end(self, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        broken = False
        while not self._stopping.is_set():
            try:
                reason = asyncio.run(self._read())
            except PerfdError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001  (whatever a library raises, reading begins anew)
                reason = f"NATS: {error or type(error).__name__}"
            if self.progress.reading:
                self.progress.reading = broken = False
                retry_s = _FIRST_RETRY_S
            if self._stopping.is_set():
                break
            if reason:
                if not broken:
                    broken = True
                    servers = ", ".join(self._config.servers)
                    log.warning(
                        "Batches are not read from NATS now; they wait there.",
                        extra={"servers": servers, "reason": reason},
                    )
                self._sessions.close_silent()
                self._stopping.wait(retry_s * random.random())  # noqa: S311  (spreads retries)
                retry_s = min(_LAST_RETRY_S, retry_s * 2)
        self._sessions.close_all()

    async def _read(self) -> str:
        """Read until the connection ends or reading has to begin anew; returns why, or nothing."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        client = await self._connector.connect(inbox=f"_INBOX_perfd_{secrets.token_hex(8)}", ended=self._end)
        self._client = client
        try:
            js = client.jetstream()
            await ensure_streams(js, self._config)
            work = asyncio.create_task(self._read_in_turn(client))
            await asyncio.wait({work, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            over = work.done()
            if not over:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            if self._stopping.is_set():
                async with asyncio.timeout(_STOP_WITHIN_S / 2):
                    await self._readers.close(js)
            return work.result() if over else self._ended.result()
        except PerfdError:
            raise
        except Exception as error:  # noqa: BLE001  (of the client; the next attempt may do better)
            return f"NATS: {reason_of(error) or type(error).__name__}"
        finally:
            self._client = None
            await client.close()

    async def _read_in_turn(self, client: Client) -> str:
        consumer = await self._readers.open(client.jetstream())
        return await NatsReading(client, self._config, consumer, self._sessions, self.progress).run()

    async def _publish(self, subject: str, data: bytes) -> None:
        if self._client is not None and self._client.is_connected:
            await self._client.publish(subject, data)
