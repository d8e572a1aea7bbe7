"""Publishes the spool to NATS JetStream: what the stream acknowledges leaves the spool.

Messages are those of the gRPC stream, each with its sender, so that any aggregator can continue with each.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfd.agent.uplink.outgoing import Statuses, put_status
from perfd.agent.uplink.partition_routes import PartitionRoutes
from perfd.agent.uplink.uplink import Uplink
from perfd.config import UplinkConfig
from perfd.errors import ConfigError, PerfdError, WireError
from perfd.model import AgentMessage, CaptureCancel, CaptureRequest, CaptureStatus, Goodbye, Hello, Welcome
from perfd.net import NatsConnector
from perfd.wire import convert, subjects

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_HEADER_BYTES = 4096
"""What sender and headers add to a batch at most: names have 256 characters."""
_WELCOME_WITHIN_S = 5.0
"""How long the first batch of a spool's life waits for an aggregator to say what it has; without one that is
running the batches are published all the same."""
_REPORT_AFTER_S = 10.0
"""An agent that has nothing to send says after so long that it is there."""
_LOOK_AHEAD_BATCHES = 40
"""Agents send one batch per second, and collectors repeat what they found every 30 s."""
_NO_RESPONDERS = "503"


@dataclass(slots=True)
class _Session:
    """One connection, from Hello to its end; used in its event loop only, but for `put` under the lock."""

    client: Client
    name: str
    answers: str
    """The subject below which answers arrive."""
    ended: asyncio.Future[str]
    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event
    statuses: Statuses
    waiting: OrderedDict[int, tuple[str, int | None]]
    """Published and not acknowledged: the message's number, its subject, and the sequence of its batch."""
    welcome: asyncio.Event
    published: int = 0
    sent_sequence: int = 0
    acknowledged_sequence: int = 0
    answered_s: float = 0.0
    """When the newest acknowledgment came, or the oldest message that waits for one was published."""
    goodbye: Goodbye | None = None
    over: bool = False
    """The goodbye is published."""

    def end(self, reason: str) -> None:
        """End the session, once."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def first_waiting(self, subject: str | None = None) -> int | None:
        """Sequence of the first batch (on `subject`, if given) that is not acknowledged; None if all are."""
        return min(
            (
                sequence
                for where, sequence in self.waiting.values()
                if sequence is not None and subject in {None, where}
            ),
            default=None,
        )


class NatsUplink(Uplink):
    """Publishes batches to JetStream."""

    _session: _Session | None = None
    _published_batches = False
    """Whether this life of the spool published any."""

    def _prepare(self, config: UplinkConfig) -> str:
        nats = config.nats
        if nats is None:
            raise ConfigError("uplink.nats is not configured.")
        if config.tls is not None or config.token_file is not None:
            raise ConfigError("uplink.tls and uplink.token_file are for gRPC: configure uplink.nats.tls.")
        self._nats = nats
        self._connector = NatsConnector(nats, key="uplink.nats", name=f"perfd agent {self._node}")
        self._routes: PartitionRoutes | None = None
        if nats.partitions is not None:
            if nats.partitions < 1:
                raise ConfigError("uplink.nats.partitions: it must be at least 1.")
            self._routes = PartitionRoutes(nats.partitions, self._job or self._node)
        return ", ".join(nats.servers)

    def _finish(self, goodbye: Goodbye) -> None:
        if self._session is not None:
            self._session.goodbye = goodbye
        self._wake()

    def _cancel(self) -> None:
        with self._changed:
            if (session := self._session) is not None:
                session.loop.call_soon_threadsafe(session.end, "the agent stops")

    def _send_status(self, status: CaptureStatus) -> None:
        if self._session is not None:
            put_status(self._session.statuses, status)
        self._wake()

    def _statuses_pending(self) -> bool:
        session = self._session
        return session is not None and bool(session.statuses or session.waiting)

    def _wake(self) -> None:
        if (session := self._session) is not None:
            session.loop.call_soon_threadsafe(session.changed.set)

    def _converse(self) -> str:
        try:
            return asyncio.run(self._open())
        except PerfdError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (whatever a library raises, the agent tries again)
            return f"NATS: {error or type(error).__name__}"

    async def _open(self) -> str:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        name = secrets.token_hex(16)
        answers = subjects.to_session(self._nats.cluster, self._node, name)
        client = await self._connector.connect(
            inbox=answers, ended=lambda reason: None if ended.done() else ended.set_result(reason)
        )
        session = _Session(
            client, name, answers, ended, loop, asyncio.Event(), {}, OrderedDict(), asyncio.Event()
        )
        work = None
        try:
            if client.max_payload < self._nats.max_message_bytes + _HEADER_BYTES:
                needed = self._nats.max_message_bytes + _HEADER_BYTES
                return (
                    f"NATS: messages have at most {client.max_payload} bytes: set max_payload of the servers "
                    f"to {needed}, or uplink.nats.max_message_bytes to less."
                )
            with self._changed:
                if self._stopping:
                    # The stop could not end this session, which did not exist yet.
                    return "the agent stops"
                for status in self._statuses.values():
                    put_status(session.statuses, status)
                self._session = session
            await client.subscribe(f"{answers}.>", cb=self._receiver(session))
            work = asyncio.create_task(self._work(session))
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() else work.result()
        finally:
            with self._changed:
                self._session = None
                self._state = replace(self._state, connected=False)
            if work is not None:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            session.end("over")
            await client.close()

    async def _work(self, session: _Session) -> str:
        """Publish until the agent stops; returns why the session has to end."""
        try:
            session.sent_sequence = session.acknowledged_sequence = self._spool.first_sequence - 1
            if self._routes is not None:
                # Batches kept from before a restart may name no job; later ones name the jobs they belong to.
                kept = self._spool.read_after(session.sent_sequence, limit=_LOOK_AHEAD_BATCHES)
                jobs = {job for one in kept for job in _jobs_of(one.payload)}
                self._routes.take(jobs, session.loop.time())
            await self._publish(session, self._hello(session.acknowledged_sequence + 1))
            while session.waiting:
                await self._wait_for_work(session)
            with self._changed:
                self._state = replace(self._state, connected=True, connections=self._state.connections + 1)
                self._changed.notify_all()
            self._welcomed()
            if not self._published_batches:
                await _event_within(session.welcome, _WELCOME_WITHIN_S)
            while not session.over or session.waiting:
                if not await self._publish_next(session):
                    await self._wait_for_work(session)
        except PerfdError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (of the client; the next session may do better)
            return f"NATS: {error}"
        return "the agent stops"

    async def _publish_next(self, session: _Session) -> bool:
        """Publish one message; False if there is none, or too many wait for their acknowledgment."""
        with self._changed:
            status = session.statuses.pop(next(iter(session.statuses))) if session.statuses else None
            goodbye = session.goodbye
        if status is not None:
            await self._publish(session, status)
            return True
        if len(session.waiting) >= self._config.max_unacknowledged:
            return False
        for batch in self._spool.read_after(session.sent_sequence, limit=1):
            if batch.sequence > session.sent_sequence + 1:
                # The spool was full and dropped what came before; the sender states it.
                if session.waiting:
                    return False
                session.acknowledged_sequence = batch.sequence - 1
            await self._publish_batch(session, batch.payload, batch.sequence)
            session.sent_sequence = batch.sequence
            self._published_batches = True
            self._count_sent(batch.sequence)
            return True
        if goodbye is not None and not session.over and not session.waiting:
            session.over = True
            await self._publish(session, goodbye)
            return True
        return False

    async def _publish(self, session: _Session, message: AgentMessage) -> None:
        for subject in self._subjects():
            await self._publish_bytes(session, subject, convert.encode_message(message), None)

    async def _publish_batch(self, session: _Session, payload: bytes, sequence: int) -> None:
        if self._routes is not None:
            goodbye = Goodbye(reason="The node has no job there now.", sent_unix_ns=self._clock.unix_ns())
            for left in self._routes.take(_jobs_of(payload), session.loop.time()):
                await self._publish_bytes(session, self._subject(left), convert.encode_message(goodbye), None)
        for subject in self._subjects():
            await self._publish_bytes(session, subject, payload, sequence)

    def _subjects(self) -> list[str]:
        """The subjects that batches are published to now."""
        if self._routes is None:
            return [subjects.from_agent(self._nats.cluster, self._job, self._node)]
        return [self._subject(partition) for partition in sorted(self._routes.current)]

    def _subject(self, partition: int) -> str:
        return subjects.to_partition(self._nats.cluster, partition, self._nats.partitions or 1, self._node)

    async def _publish_bytes(
        self, session: _Session, subject: str, payload: bytes, sequence: int | None
    ) -> None:
        first = session.first_waiting(subject)
        if first is None:
            # Earlier batches are acknowledged, or went only to other partitions.
            first = session.acknowledged_sequence + 1
            first = first if self._routes is None or sequence is None else sequence
        sender = self._hello(first)
        payload += convert.encode_sender(sender, session.name)
        if len(payload) + _HEADER_BYTES // 2 > session.client.max_payload:
            raise PerfdError(
                f"NATS: batch {sequence} has {len(payload)} bytes, and messages there at most "
                f"{session.client.max_payload}: increase max_payload of the servers."
            )
        session.published += 1
        if not session.waiting:
            session.answered_s = session.loop.time()
        session.waiting[session.published] = subject, sequence
        await session.client.publish(
            subject,
            payload,
            reply=f"{session.answers}.ack.{session.published}",
            headers=None if sequence is None else {"Nats-Msg-Id": _message_id(sender, sequence, subject)},
        )

    async def _wait_for_work(self, session: _Session) -> None:
        """Wait for something to do; raises `PerfdError` when an acknowledgment is overdue."""
        if not session.waiting:
            if not await _event_within(session.changed, _REPORT_AFTER_S):
                await self._publish(session, self._hello(session.acknowledged_sequence + 1))
            session.changed.clear()
            return
        left_s = session.answered_s + self._timeouts.acknowledgement_s - session.loop.time()
        if left_s <= 0 or not await _event_within(session.changed, left_s):
            raise PerfdError("NATS: the stream does not acknowledge what is published.")
        session.changed.clear()

    def _receiver(self, session: _Session) -> Callable[[Msg], Awaitable[None]]:
        async def receive(message: Msg) -> None:
            try:
                kind, _, number = message.subject.removeprefix(f"{session.answers}.").partition(".")
                if kind == "ack" and number.isascii() and number.isdigit():
                    self._acknowledged(session, int(number), message)
                elif kind == "message":
                    self._take(session, message.data)
            except PerfdError as error:
                session.end(str(error))
            session.changed.set()

        return receive

    def _acknowledged(self, session: _Session, number: int, message: Msg) -> None:
        if number not in session.waiting:
            return
        if (refused := _refusal(message)) is not None:
            session.end(refused)
            return
        session.answered_s = session.loop.time()
        del session.waiting[number]
        # Acknowledgments overtake each other when a server is replaced; the spool goes in order.
        first = session.first_waiting() or session.sent_sequence + 1
        with self._changed:
            if first - 1 > session.acknowledged_sequence:
                session.acknowledged_sequence = first - 1
                self._know_acknowledged(first - 1)
            self._changed.notify_all()

    def _take(self, session: _Session, data: bytes) -> None:
        message = convert.decode_aggregator_message(data)
        match message:
            case Welcome():
                if self._renewed(message, first=not self._published_batches):
                    self._published_batches = False
                    session.end("the agent took a new identity")
                    return
                self._spool.welcomed()
                session.welcome.set()
            case CaptureRequest() | CaptureCancel():
                self._on_request(message)
            case None:
                self._count_unknown_message()


def _jobs_of(payload: bytes) -> set[str]:
    try:
        return convert.jobs_of(payload)
    except WireError:
        # The aggregator counts unreadable batches.
        return set()


def _message_id(sender: Hello, sequence: int, subject: str) -> str:
    """What the stream recognizes repeats by; with the node, since a copied spool has the same identity."""
    return f"{sender.agent_id}.{subject.partition('.from.')[2]}.{sequence}"


def _refusal(message: Msg) -> str | None:
    """Why the stream did not store a message; None if it did."""
    if (message.headers or {}).get("Status") == _NO_RESPONDERS:
        return f"NATS: no stream takes {subjects.ALL_OF_AGENTS}; an aggregator with `nats` creates it."
    try:
        answer = json.loads(message.data)
        error = answer.get("error")
    except (ValueError, AttributeError) as wrong:
        raise WireError("NATS: an acknowledgment cannot be read.") from wrong
    if error is None:
        return None
    text = error.get("description", "") if isinstance(error, dict) else str(error)
    return f"NATS: the stream does not take the batch: {text}."


async def _event_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        # Not `wait_for`, which up to Python 3.11 takes no cancellation when the event comes at that moment.
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
