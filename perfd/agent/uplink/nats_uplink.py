"""Publishes the spool to NATS JetStream: what aggregators have stored leaves the spool."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from perfd.agent.uplink.nats_publisher import NatsPublisher, PartitionRoutes, jobs_in, new_session
from perfd.agent.uplink.outgoing import Statuses, put_status
from perfd.agent.uplink.unstored_batches import UnstoredBatches
from perfd.agent.uplink.uplink import Uplink
from perfd.config import UplinkConfig
from perfd.errors import ConfigError, PerfdError
from perfd.model import (
    AggregatorMessage,
    BatchInterval,
    CaptureCancel,
    CaptureRequest,
    CaptureStatus,
    Goodbye,
    Hello,
    NewFinding,
    Stored,
    Welcome,
)
from perfd.net import NatsConnector, end_tasks

_WELCOME_WITHIN_S = 5.0
"""How long the first batch of a spool's life waits for an aggregator to say what it has; without one that is
running the batches are published all the same."""
_ACKNOWLEDGED_WITHIN_S = 6.0
"""Milliseconds are usual. What was lost with a server is published again on another connection."""
_LEADERLESS_FOR_S = 12.0
"""Servers need up to 10 s to elect a leader of the stream; connections of all agents would delay them."""
_LEADERLESS_RETRY_S = 0.3
"""To the next publication while the stream has no leader, and aggregators do not take batches directly yet:
they do after 1.2 s. Chosen."""
_REPORT_AFTER_S = 10.0
"""An agent that has nothing to send says after so long that it is there."""
_LOOK_AHEAD_BATCHES = 40
"""Agents send one batch per second, and collectors repeat what they found every 30 s."""


@dataclass(slots=True)
class _Session:
    """One connection, from Hello to its end; used in its event loop only, but for `put` under the lock."""

    publisher: NatsPublisher
    loop: asyncio.AbstractEventLoop
    statuses: Statuses
    welcome: asyncio.Event
    goodbye: Goodbye | None = None
    over: bool = False
    """The goodbye is published."""


class NatsUplink(Uplink):
    """Publishes batches to JetStream.

    A batch leaves the spool once all aggregators that it is for have stored it, or, where they are of
    a version that does not report it or the spool fills, once the stream has it.
    """

    _session: _Session | None = None
    _published_batches = False
    """Whether this life of the spool published any."""
    _in_stream = 0
    """The sequence up to which the stream has acknowledged all."""
    _says_stored: bool | None = None
    """Whether aggregators say what they stored; None as long as none is known."""

    def _prepare(self, config: UplinkConfig) -> str:
        nats = config.nats
        if nats is None:
            raise ConfigError("uplink.nats is not configured.")
        if config.tls is not None or config.token_file is not None:
            raise ConfigError("uplink.tls and uplink.token_file are for gRPC: configure uplink.nats.tls.")
        self._nats = nats
        self._unstored = UnstoredBatches()
        self._connector = NatsConnector(nats, key="uplink.nats", name=f"perfd agent {self._node}")
        self._routes: PartitionRoutes | None = None
        if nats.partitions is not None:
            if nats.partitions < 1:
                raise ConfigError("uplink.nats.partitions: it must be at least 1.")
            self._routes = PartitionRoutes(nats.partitions, self._job or self._node)
        return ", ".join(nats.servers)

    def _hurry(self) -> None:
        """Nothing to do: JetStream acknowledges each message."""

    def _finish(self, goodbye: Goodbye) -> None:
        if self._session is not None:
            self._session.goodbye = goodbye
        self._wake()

    def _cancel(self) -> None:
        with self._changed:
            if (session := self._session) is not None:
                session.loop.call_soon_threadsafe(session.publisher.end, "the agent stops")

    def _send_status(self, status: CaptureStatus) -> None:
        if self._session is not None:
            put_status(self._session.statuses, status)
        self._wake()

    def _statuses_pending(self) -> bool:
        session = self._session
        return session is not None and bool(session.statuses or session.publisher.waiting_messages)

    def _wake(self) -> None:
        if (session := self._session) is not None:
            session.loop.call_soon_threadsafe(session.publisher.changed.set)

    def _converse(self) -> str:
        try:
            return asyncio.run(self._open())
        except PerfdError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (whatever a library raises, the agent tries again)
            return f"NATS: {error or type(error).__name__}"

    async def _open(self) -> str:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = loop.create_future()
        named = new_session(self._nats.cluster, self._node)
        client = await self._connector.connect(
            inbox=named[1], ended=lambda reason: None if over.done() else over.set_result(reason)
        )
        publisher = NatsPublisher(
            client,
            self._nats,
            named,
            node=self._node,
            job=self._job,
            routes=self._routes,
            hello=self._hello,
            received=self._take,
            acknowledged=self._take_acknowledged,
            # The stream has what is before; its loss shows in what aggregators store.
            first_sequence=max(self._spool.first_sequence, self._in_stream + 1),
            leaderless_for_s=_LEADERLESS_FOR_S,
            published=lambda sequence, to: self._unstored.published(sequence, to, loop.time()),
        )
        session = _Session(publisher, loop, {}, asyncio.Event())
        work = None
        try:
            with self._changed:
                if self._stopping:
                    # The stop could not end this session, which did not exist yet.
                    return "the agent stops"
                for status in self._statuses.values():
                    put_status(session.statuses, status)
                self._session = session
            await publisher.listen()
            work = asyncio.create_task(self._work(session))
            ended = publisher.ended
            await asyncio.wait({work, ended, over}, return_when=asyncio.FIRST_COMPLETED)
            return next(one for one in (ended, over, work) if one.done()).result()
        finally:
            with self._changed:
                self._session = None
                self._state = replace(self._state, connected=False)
            if work is not None:
                await end_tasks(work)
            publisher.end("over")
            await client.close()

    async def _work(self, session: _Session) -> str:
        """Publish until the agent stops; returns why the session has to end."""
        publisher = session.publisher
        try:
            if self._routes is not None:
                # Batches kept from before a restart may name no job; later ones name the jobs they belong to.
                kept = self._spool.read_after(publisher.sent_sequence, limit=_LOOK_AHEAD_BATCHES)
                self._routes.take({job for one in kept for job in jobs_in(one.payload)}, session.loop.time())
            await publisher.report()
            while publisher.waiting_messages:
                await self._wait_for_work(session)
            with self._changed:
                self._state = replace(self._state, connected=True, connections=self._state.connections + 1)
                self._changed.notify_all()
            self._welcomed()
            if not self._published_batches:
                await _event_within(session.welcome, _WELCOME_WITHIN_S)
            while not session.over or publisher.waiting_messages:
                if publisher.refused or not (
                    await self._publish_next(session) or await self._publish_again(session)
                ):
                    await self._wait_for_work(session)
        except PerfdError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (of the client; the next session may do better)
            return f"NATS: {error}"
        return "the agent stops"

    async def _publish_next(self, session: _Session) -> bool:
        """Publish one message; False if there is none, or too many wait for their acknowledgment."""
        publisher = session.publisher
        with self._changed:
            status = session.statuses.pop(next(iter(session.statuses))) if session.statuses else None
            goodbye = session.goodbye
        if status is not None:
            await publisher.publish(status)
            return True
        if publisher.waiting_messages >= self._config.max_unacknowledged:
            return False
        for batch in self._spool.read_after(publisher.sent_sequence, limit=1):
            again = batch.sequence <= max(self._most_sent, self._spool.opened_after)
            if not await publisher.publish_batch(
                batch.payload, batch.sequence, self._clock.unix_ns(), again=again
            ):
                return False
            self._published_batches = True
            self._count_sent(batch.sequence)
            return True
        if goodbye is not None and not session.over and not publisher.waiting_messages:
            session.over = True
            await publisher.publish(goodbye)
            return True
        return False

    async def _publish_again(self, session: _Session) -> bool:
        """Publish a batch that the stream acknowledged and aggregators seem to lack; False for none."""
        if session.publisher.waiting_messages >= self._config.max_unacknowledged:
            return False
        if (overdue := self._unstored.next_overdue(session.loop.time())) is None:
            return False
        kept = self._spool.read_after(overdue.sequence - 1, limit=1)
        if kept and kept[0].sequence == overdue.sequence:
            await session.publisher.publish_again(kept[0].payload, overdue)
            self._count_again()
        else:
            # It was damaged on the disk.
            self._unstored.stored(overdue.subject, [overdue.sequence])
        return True

    async def _wait_for_work(self, session: _Session) -> None:
        """Wait for something to do; raises `PerfdError` when an acknowledgment is overdue."""
        publisher = session.publisher
        if publisher.refused:
            await self._begin_again(session, _LEADERLESS_RETRY_S)
            return
        if not publisher.waiting_messages:
            if not await _event_within(publisher.changed, _REPORT_AFTER_S):
                await publisher.report()
            publisher.changed.clear()
            return
        patience_s = min(_ACKNOWLEDGED_WITHIN_S, self._timeouts.acknowledgement_s)
        over_s, again_s = publisher.silent_since_s + patience_s, publisher.due_again_s
        left_s = min(over_s, again_s) - session.loop.time()
        if left_s > 0 and await _event_within(publisher.changed, left_s):
            publisher.changed.clear()
        elif over_s <= again_s:
            raise PerfdError("NATS: the stream does not acknowledge what is published.")
        else:
            await self._begin_again(session)

    async def _begin_again(self, session: _Session, after_s: float = 0.0) -> None:
        """Publish again what is not acknowledged, after a while, on the same connection."""
        publisher = session.publisher
        await asyncio.sleep(after_s * (1 + random.random()))  # noqa: S311  (spreads retries)
        publisher.begin_again()
        session.over = False
        with self._changed:
            for status in self._statuses.values():
                put_status(session.statuses, status)
        await publisher.report()

    def _take_acknowledged(self, sequence: int) -> None:
        self._in_stream = max(self._in_stream, sequence)
        with self._changed:
            known = max(sequence, self._state.acknowledged_sequence)
            self._state = replace(self._state, acknowledged_sequence=known)
            self._changed.notify_all()
        self._release()

    def _release(self) -> None:
        """Delete from the spool what needs not be published again."""
        sequence = self._in_stream
        # Those that a full spool dropped.
        self._unstored.forget(self._spool.first_sequence - 1)
        if self._says_stored is not False and not self._spool.is_half_full:
            sequence = min(sequence, self._unstored.stored_sequence)
        else:
            self._unstored.forget(sequence)
        if sequence >= self._spool.first_sequence:
            self._spool.acknowledge(sequence)

    def _hello(self, first_sequence: int) -> Hello:
        return replace(super()._hello(first_sequence), keeps_until_stored=True)

    def _renew(self, *, all_batches: bool) -> None:
        super()._renew(all_batches=all_batches)
        self._in_stream, self._unstored = 0, UnstoredBatches()

    def _take(self, message: AggregatorMessage | None) -> None:
        session = self._session
        if session is None or session.publisher.ended.done():
            # What comes after a new identity was taken is about the old one.
            return
        match message:
            case Welcome():
                if self._renewed(message, self._spool.last_sequence if self._published_batches else 0):
                    self._published_batches = False
                    session.publisher.end("the agent took a new identity")
                    return
                self._spool.welcomed()
                # In a group of two versions, those that say nothing hold up what they store.
                self._says_stored = message.says_stored or bool(self._says_stored)
                self._release()
                # Another aggregator may read now, which has asked for nothing yet.
                self._end_request()
                session.welcome.set()
            case Stored():
                self._unstored.stored(message.subject, message.sequences)
                self._release()
            case CaptureRequest() | CaptureCancel() | NewFinding() | BatchInterval():
                self._pass_on(message)
            case None:
                self._count_unknown_message()


async def _event_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        # Not `wait_for`, which up to Python 3.11 takes no cancellation when the event comes at that moment.
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
