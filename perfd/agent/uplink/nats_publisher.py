"""Publishes one agent's messages to the stream, and knows which of them the stream acknowledged.

Messages are those of the gRPC stream, each with its sender, so that any aggregator can continue with each.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from perfd.agent.uplink.unstored_batches import Overdue
from perfd.config import NatsUplinkConfig
from perfd.errors import PerfdError, WireError
from perfd.model import AgentMessage, AggregatorMessage, Goodbye, Hello
from perfd.net import PUBLISHED_HEADER_BYTES
from perfd.wire import convert, encoded_messages, subjects
from perfd.wire.subjects import partition_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

KEPT_FOR_S = 60.0
"""A job that no batch names for this long has left the node: collectors repeat what they found every 30 s."""
_NO_RESPONDERS = "503"
_AGAIN_AFTER_S = 1.0
"""From the publication of a message without acknowledgment, which takes milliseconds, to the next. Chosen."""
_USUAL_TIMES = 2.0
"""An acknowledgment that takes so many times longer than the slowest of late is missing."""
_FORGOTTEN_SHARE = 0.1
"""Of the slowest acknowledgment, with each faster one."""


class PartitionRoutes:
    """All of a node's batches go to the partitions of all its jobs, since GPU samples name no job."""

    def __init__(self, partitions: int, without_job: str) -> None:
        """`without_job` stands in for the job's name on a node without jobs."""
        self._partitions = partitions
        self._default = frozenset({partition_of(without_job, partitions)})
        self._seen_s: dict[int, float] = {}
        self.current: frozenset[int] = self._default

    def take(self, jobs: Iterable[str], now_s: float) -> Collection[int]:
        """Record the jobs that a batch names; returns partitions that the node no longer has jobs in."""
        for job in jobs:
            self._seen_s[partition_of(job, self._partitions)] = now_s
        for partition in [one for one, seen_s in self._seen_s.items() if now_s - seen_s > KEPT_FOR_S]:
            del self._seen_s[partition]
        before, self.current = self.current, frozenset(self._seen_s) or self._default
        return before - self.current


def new_session(cluster: str, node: str) -> tuple[str, str]:
    """The name of a new session, and the subject below which its answers arrive."""
    name = secrets.token_hex(16)
    return name, subjects.to_session(cluster, node, name)


class NatsPublisher:
    """One session of one agent, on a connection that others may share. For one event loop only.

    `hello` states the sender for a first sequence. `received` gets the aggregator's messages, and
    `acknowledged` the sequence up to which the stream has everything.
    """

    def __init__(
        self,
        client: Client,
        config: NatsUplinkConfig,
        session: tuple[str, str],
        *,
        node: str,
        job: str | None,
        routes: PartitionRoutes | None,
        hello: Callable[[int], Hello],
        received: Callable[[AggregatorMessage | None], None],
        acknowledged: Callable[[int], None],
        first_sequence: int,
        namespace: str = "",
        leaderless_for_s: float = 0.0,
        published: Callable[[int, Sequence[str]], None] = lambda _sequence, _subjects: None,
    ) -> None:
        """`first_sequence` is the first batch's; the agent is limited to jobs of `namespace`, if any.

        `published` is called before each batch goes to its subjects.

        No server may take its messages for `leaderless_for_s`, as while a stream has no leader: then
        `refused` says that it has to `begin_again` after a while.
        """
        self._leaderless_for_s = leaderless_for_s
        self._leaderless_since_s: float | None = None
        self.refused = False
        """Whether no server took a message."""
        self._client = client
        self._config = config
        self._name, self._answers = session
        self._node = node
        self._job = job
        self._routes = routes
        self._hello = hello
        self._received = received
        self._acknowledged = acknowledged
        self._namespace = namespace
        self._note_published = published
        self._published = 0
        self._waiting: OrderedDict[int, tuple[str, int | None, float]] = OrderedDict()
        """Published and not acknowledged: the subject, the batch's sequence and the time, by number."""
        self._slowest_s = 0.0
        """How long acknowledgments take of late, at most."""
        self._tries = 0
        """How often all was published again without an acknowledgment since."""
        self._moved_s = 0.0
        """When a server answered last, or something was published while nothing waited."""
        self.sent_sequence = self.acknowledged_sequence = first_sequence - 1
        self.changed = asyncio.Event()
        """Something was acknowledged or received."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the session cannot continue, once that is so."""

    @property
    def silent_since_s(self) -> float:
        """Since when messages wait and no server answers; only if there are such."""
        return self._moved_s

    @property
    def due_again_s(self) -> float:
        """When to publish again what is not acknowledged; only if there is something.

        A message can be lost alone, with the server that led the stream.
        """
        patience_s = max(_AGAIN_AFTER_S, _USUAL_TIMES * self._slowest_s)
        published_s = next(iter(self._waiting.values()))[2]
        return published_s + patience_s * (1 << self._tries)

    @property
    def waiting_messages(self) -> int:
        """Published and not acknowledged."""
        return len(self._waiting)

    def begin_again(self) -> None:
        """Forget what waits for an acknowledgment: all after the acknowledged sequence is to be published."""
        self._waiting.clear()
        self.sent_sequence = self.acknowledged_sequence
        self._tries = 0 if self.refused else self._tries + 1
        self.refused = False

    def end(self, reason: str) -> None:
        """End the session, once."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def listen(self) -> Callable[[], Awaitable[None]]:
        """Receive answers; returns what ends that. Raises `PerfdError` if the servers take no large batch."""
        needed = self._config.max_message_bytes + PUBLISHED_HEADER_BYTES
        if self._client.max_payload < needed:
            raise PerfdError(
                f"NATS: messages have at most {self._client.max_payload} bytes: set max_payload of the "
                f"servers to {needed}, or `max_message_bytes` to less."
            )
        subscription = await self._client.subscribe(f"{self._answers}.>", cb=self._receive)
        return subscription.unsubscribe

    async def publish(self, message: AgentMessage) -> None:
        """Publish a message to all partitions of the node's jobs."""
        await self.publish_encoded(convert.encode_message(message))

    async def publish_encoded(self, payload: bytes) -> None:
        """Publish an encoded message, as `publish`."""
        for subject in self._subjects():
            await self._publish(subject, payload, None)

    async def report(self) -> None:
        """Publish that the agent is there."""
        await self.publish(self._hello(self.acknowledged_sequence + 1))

    async def publish_batch(
        self, payload: bytes, sequence: int, sent_unix_ns: int, *, again: bool = False, lost: int = 0
    ) -> bool:
        """Publish a batch, `again` if it may have been; False if those before it have to be acknowledged.

        That is so after a gap: the agent dropped batches, as the sender states. `lost` is how often it was
        acknowledged and not stored: the stream must not take it for a repeat.
        """
        if sequence > self.sent_sequence + 1:
            if self._waiting:
                return False
            self.acknowledged_sequence = sequence - 1
        if self._routes is not None:
            goodbye = Goodbye(reason="The node has no job there now.", sent_unix_ns=sent_unix_ns)
            for left in self._routes.take(jobs_in(payload), asyncio.get_running_loop().time()):
                await self._publish(self._subject(left), convert.encode_message(goodbye), None)
        to = self._subjects()
        self._note_published(sequence, to)
        for subject in to:
            await self._publish(subject, payload, sequence, again=again, lost=lost)
        self.sent_sequence = sequence
        return True

    async def publish_again(self, payload: bytes, overdue: Overdue) -> None:
        """Publish a batch to one subject, though the stream acknowledged it: no aggregator stored it."""
        await self._publish(overdue.subject, payload, overdue.sequence, again=True, overdue=overdue.number)

    def _subjects(self) -> list[str]:
        """The subjects that batches are published to now."""
        if self._routes is None:
            return [subjects.from_agent(self._config.cluster, self._job, self._node)]
        return [self._subject(partition) for partition in sorted(self._routes.current)]

    def _subject(self, partition: int) -> str:
        partitions = self._config.partitions or 1
        return subjects.to_partition(self._config.cluster, partition, partitions, self._node)

    async def _publish(
        self,
        subject: str,
        payload: bytes,
        sequence: int | None,
        *,
        again: bool = False,
        overdue: int = 0,
        lost: int = 0,
    ) -> None:
        first = sequence if overdue else self._first_waiting(subject)
        if first is None:
            # Earlier batches are acknowledged, or went only to other partitions.
            first = self.acknowledged_sequence + 1
            first = first if self._routes is None or sequence is None else sequence
        sender = self._hello(first)
        payload += encoded_messages.encode_sender(sender, self._name, self._namespace, again=again)
        if len(payload) + PUBLISHED_HEADER_BYTES // 2 > self._client.max_payload:
            raise PerfdError(
                f"NATS: batch {sequence} has {len(payload)} bytes, and messages there at most "
                f"{self._client.max_payload}: increase max_payload of the servers."
            )
        self._published += 1
        # What is overdue is not in order, and was acknowledged before.
        in_order = None if overdue else sequence
        now_s = asyncio.get_running_loop().time()
        if not self._waiting and not self._tries:
            self._moved_s = now_s
        self._waiting[self._published] = subject, in_order, now_s
        await self._client.publish(
            subject,
            payload,
            reply=f"{self._answers}.ack.{self._published}",
            headers=None
            if sequence is None
            else {"Nats-Msg-Id": _message_id(sender, sequence, subject, overdue or lost)},
        )

    def _first_waiting(self, subject: str | None = None) -> int | None:
        """Sequence of the first batch (on `subject`, if given) that is not acknowledged; None if all are."""
        return min(
            (
                sequence
                for where, sequence, _ in self._waiting.values()
                if sequence is not None and subject in {None, where}
            ),
            default=None,
        )

    async def _receive(self, message: Msg) -> None:
        try:
            kind, _, number = message.subject.removeprefix(f"{self._answers}.").partition(".")
            if kind == "ack" and number.isascii() and number.isdigit():
                self._take_acknowledgment(int(number), message)
            elif kind == "message":
                self._received(convert.decode_aggregator_message(message.data))
        except PerfdError as error:
            self.end(str(error))
        self.changed.set()

    def _take_acknowledgment(self, number: int, message: Msg) -> None:
        if number not in self._waiting:
            return
        now_s = self._moved_s = asyncio.get_running_loop().time()
        if (message.headers or {}).get("Status") == _NO_RESPONDERS:
            self.refused = True
            since_s = self._leaderless_since_s = self._leaderless_since_s or now_s
            if now_s - since_s >= self._leaderless_for_s:
                self.end(
                    f"NATS: no stream takes {subjects.ALL_OF_AGENTS}; an aggregator with `nats` creates it."
                )
            return
        if (refusal := _refusal(message)) is not None:
            self.end(refusal)
            return
        self._leaderless_since_s = None
        self._tries = 0
        took_s = now_s - self._waiting.pop(number)[2]
        self._slowest_s = max(took_s, self._slowest_s * (1 - _FORGOTTEN_SHARE))
        # Acknowledgments overtake each other when a server is replaced; the spool goes in order.
        first = self._first_waiting() or self.sent_sequence + 1
        self.acknowledged_sequence = max(self.acknowledged_sequence, first - 1)
        self._acknowledged(self.acknowledged_sequence)


def jobs_in(payload: bytes) -> set[str]:
    """The jobs that an encoded batch names; none if it cannot be read, which the aggregator counts."""
    try:
        return encoded_messages.jobs_of(payload)
    except WireError:
        return set()


def _message_id(sender: Hello, sequence: int, subject: str, overdue: int) -> str:
    """What the stream recognizes repeats by; with the node, since a copied spool has the same identity.

    What is overdue is another message, which the stream must not take for the lost one.
    """
    times = f".{overdue}" if overdue else ""
    return f"{sender.agent_id}.{subject.partition('.from.')[2]}.{sequence}{times}"


def _refusal(message: Msg) -> str | None:
    """Why the stream did not store a message; None if it did."""
    try:
        answer = json.loads(message.data)
        error = answer.get("error")
    except (ValueError, AttributeError) as wrong:
        raise WireError("NATS: an acknowledgment cannot be read.") from wrong
    if error is None:
        return None
    text = error.get("description", "") if isinstance(error, dict) else str(error)
    return f"NATS: the stream does not take the batch: {text}."
