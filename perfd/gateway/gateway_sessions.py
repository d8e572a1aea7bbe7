"""Publishes what agents stream, and passes acknowledgments and captures' messages back."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfd.agent.uplink import NatsPublisher, PartitionRoutes, UnstoredBatches, new_session
from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.ingest import MAX_SEQUENCE, AgentCredential, AgentSession, check_hello
from perfd.aggregator.limits import Limits
from perfd.clock import Clock
from perfd.config import NatsGatewayConfig
from perfd.errors import PerfdError, RefusedError, WireError
from perfd.model import (
    AggregatorMessage,
    BatchInterval,
    CaptureCancel,
    CaptureRequest,
    Hello,
    NewFinding,
    NodeMessage,
    Stored,
    Welcome,
)
from perfd.wire.encoded_messages import sequence_of

if TYPE_CHECKING:
    from nats.aio.client import Client

_MOST_UNSTORED = 600
"""Batches of an agent, of ten minutes, that wait for an aggregator; with more, as in a long outage, what the
stream has leaves the spool."""
_WELCOME_WITHIN_S = 5.0
"""How long a stream waits for an aggregator to say what it has; without one it begins all the same."""
_REPORT_AFTER_S = 10.0
"""An agent that sends nothing is reported after so long: without that it is gone after 30 s."""
_LOOK_EVERY_S = 1.0
"""For batches that were lost."""
_PATIENCE_S = 2.0
"""How much longer than an agent on NATS a gateway waits for an acknowledgment: all is sent again."""
_MOST_UNACKNOWLEDGED = 256
"""Messages of one stream that wait for the servers; more are read from the agent afterwards."""


class KeptBatches:
    """The batches of one agent's spool that were published, until aggregators have stored them."""

    def __init__(self) -> None:
        self._unstored = UnstoredBatches()
        self._most_sent = 0
        self._says_stored: bool | None = None
        self.sent_before = 0
        """Up to which number an earlier stream of the agent may have sent them."""
        self.lost: dict[int, int] = {}
        """By number, how often a batch was acknowledged and not stored."""

    def begin(self, first_sequence: int) -> None:
        """A stream begins whose agent has nothing before `first_sequence`."""
        self.sent_before = self._most_sent
        self._unstored.forget(first_sequence - 1)

    def published(self, sequence: int, subjects: Sequence[str], now_s: float) -> None:
        """Note a batch that is published."""
        self._most_sent = max(self._most_sent, sequence)
        self._unstored.published(sequence, subjects, now_s)

    def welcomed(self, welcome: Welcome) -> None:
        """Note whether aggregators say what they store: those of an earlier version do not."""
        self._says_stored = welcome.says_stored or bool(self._says_stored)

    def stored(self, message: Stored) -> None:
        """Note what an aggregator stored."""
        self._unstored.stored(message.subject, message.sequences)
        self.lost = {sequence: times for sequence, times in self.lost.items() if sequence in self._unstored}

    def stored_sequence(self, acknowledged: int) -> int:
        """Up to which number the spool needs no batches; the stream has those up to `acknowledged`."""
        if self._says_stored is False or len(self._unstored) > _MOST_UNSTORED:
            self._unstored.forget(acknowledged)
        return min(acknowledged, self._unstored.stored_sequence)

    def find_lost(self, now_s: float) -> bool:
        """Whether batches are to be sent again that the stream acknowledged and no aggregator stored."""
        before = len(self.lost), sum(self.lost.values())
        while (overdue := self._unstored.next_overdue(now_s)) is not None:
            self.lost[overdue.sequence] = overdue.number
        return (len(self.lost), sum(self.lost.values())) != before


class GatewaySessions:
    """`AgentSessions` for one connection to NATS at a time; all methods run in one event loop."""

    take_together = None
    """See `AgentSessions`."""

    def __init__(
        self,
        config: NatsGatewayConfig,
        audit: AuditLog,
        clock: Clock,
        deliver: Callable[[str, NodeMessage], None],
    ) -> None:
        """`deliver` sends a message to the agent with an identity."""
        self._audit = audit
        self._open: set[GatewaySession] = set()
        self.config = config
        self.clock = clock
        self.deliver = deliver
        self.limits = Limits()
        self.rejected_by: Counter[str] = Counter()
        self.malformed_messages = 0
        self.batches = 0
        self.client: Client | None = None
        """None while there is no connection."""
        self._kept: dict[str, KeptBatches] = {}
        """By agent, those with a stream last at the end."""

    def __iter__(self) -> Iterator[GatewaySession]:
        return iter(tuple(self._open))

    async def open(
        self, hello: Hello, _number: int, credential: AgentCredential, changed: Callable[[], None]
    ) -> tuple[AgentSession | None, Welcome]:
        """See `AgentSessions`. Also raises `PerfdError` while NATS cannot be reached."""
        check_hello(hello, credential, self.limits, self._audit)
        if self.client is None:
            raise PerfdError("This gateway cannot reach NATS now.")
        session = GatewaySession(self, self.client, hello, credential, changed)
        self._open.add(session)
        try:
            known = await session.begin()
        except BaseException:
            session.close(newest=True)
            raise
        if known is not None and known.renew_identity:
            session.close(newest=True)
            return None, known
        before = hello.first_sequence - 1
        return session, Welcome(
            last_sequence=before,
            received_sequence=before,
            sent_unix_ns=self.clock.unix_ns(),
            known_sequence=0 if known is None else max(known.last_sequence, known.received_sequence),
        )

    def kept_by(self, agent_id: str) -> KeptBatches:
        """What is known of the batches in an agent's spool, since its earlier streams here, too."""
        kept = self._kept.pop(agent_id) if agent_id in self._kept else KeptBatches()
        self._kept[agent_id] = kept
        while len(self._kept) > self.limits.agents:
            del self._kept[next(iter(self._kept))]
        return kept

    def forget(self, session: GatewaySession) -> None:
        """A session has ended."""
        self._open.discard(session)

    def lost(self, reason: str) -> None:
        """The connection to NATS has ended: agents connect again and send what is not acknowledged."""
        self.client = None
        for session in self:
            session.publisher.end(reason)

    async def watch(self) -> None:
        """Until canceled, report agents that sent nothing for a while, and have lost batches sent again."""
        loop = asyncio.get_running_loop()
        report_s = loop.time() + _REPORT_AFTER_S
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for session in self:
                session.end_if_lost()
            if loop.time() >= report_s:
                report_s = loop.time() + _REPORT_AFTER_S
                for session in self:
                    await session.report_if_silent()

    def malformed(self) -> None:
        """See `AgentSessions`."""
        self.malformed_messages += 1

    def rejected(self, bound: str) -> None:
        """See `AgentSessions`."""
        self.rejected_by[bound] += 1

    def refuse(self, sentence: str, *, actor: str) -> RefusedError:
        """See `AgentSessions`."""
        return self._audit.refusal(Refusal.AGENT_CREDENTIAL, sentence, actor=actor)

    def close(self) -> None:
        """See `AgentSessions`."""
        self.lost("The gateway stops.")


class GatewaySession:
    """See `AgentSession`."""

    def __init__(
        self,
        sessions: GatewaySessions,
        client: Client,
        hello: Hello,
        credential: AgentCredential,
        changed: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._hello = hello
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._early: list[NodeMessage] | None = []
        """What came before the agent got its Welcome; None afterwards."""
        self._is_asked = False
        """Whether the aggregator wants batches at another interval while nothing changes."""
        self._sent = True
        """Whether the agent sent something since the last look."""
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.agent_id = hello.agent_id
        self.node = hello.node
        config = sessions.config
        loop = asyncio.get_running_loop()
        self._changed = changed
        self._kept = sessions.kept_by(hello.agent_id)
        self._kept.begin(hello.first_sequence)
        self.publisher = NatsPublisher(
            client,
            config,
            new_session(config.cluster, hello.node),
            node=hello.node,
            job=None,
            routes=PartitionRoutes(config.partitions, hello.node) if config.partitions else None,
            hello=self._sender,
            received=self._receive,
            acknowledged=lambda _sequence: changed(),
            first_sequence=hello.first_sequence,
            namespace=credential.namespace or "",
            published=lambda sequence, to: self._kept.published(sequence, to, loop.time()),
        )

    @property
    def stored_sequence(self) -> int:
        return self._kept.stored_sequence(self.publisher.acknowledged_sequence)

    @property
    def received_sequence(self) -> int:
        # The agent's own limit of unacknowledged batches applies.
        return self.publisher.acknowledged_sequence

    @property
    def current(self) -> bool:
        return not self.publisher.ended.done()

    @property
    def has_to_resend(self) -> bool:
        return self.publisher.ended.done()

    async def begin(self) -> Welcome | None:
        """Report the agent; what an aggregator answers, None without one. Raises `PerfdError`."""
        publisher = self.publisher
        self._unsubscribe = await publisher.listen()
        await publisher.report()
        outcomes: set[asyncio.Future[Any]] = {self._welcome, publisher.ended}
        await asyncio.wait(outcomes, timeout=_WELCOME_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        if publisher.ended.done():
            raise PerfdError(publisher.ended.result())
        return self._welcome.result() if self._welcome.done() else None

    def connected(self) -> None:
        early, self._early = self._early or [], None
        for message in early:
            self._sessions.deliver(self.agent_id, message)

    async def take(self, data: bytes) -> bool:
        publisher = self.publisher
        self._sent = True
        try:
            sequence = sequence_of(data)
        except WireError:
            sequence = 0
        if sequence is not None and not 0 < sequence <= MAX_SEQUENCE:
            # A batch that is left out shows as a gap, and is acknowledged with the next one.
            self._sessions.malformed()
            return False
        while publisher.waiting_messages >= _MOST_UNACKNOWLEDGED:
            await self._wait()
        if sequence is None:
            await publisher.publish_encoded(data)
            return False
        repeated = sequence <= publisher.acknowledged_sequence
        again, lost = sequence <= self._kept.sent_before, self._kept.lost.get(sequence, 0)
        now_ns = self._sessions.clock.unix_ns()
        while not await publisher.publish_batch(data, sequence, now_ns, again=again, lost=lost):
            await self._wait()
        self._sessions.batches += 1
        return repeated

    async def report_if_silent(self) -> None:
        """Report the agent, if it sent nothing since the last call."""
        sent, self._sent = self._sent, False
        if not sent and self.current:
            await self.publisher.report()

    def end_if_lost(self) -> None:
        """End the stream if a batch was lost: only the agent has it, and sends what is not stored again."""
        now_s, publisher = asyncio.get_running_loop().time(), self.publisher
        if not self.current:
            return
        if publisher.waiting_messages and now_s >= publisher.due_again_s + _PATIENCE_S:
            publisher.end("NATS: the stream does not acknowledge what is published.")
        elif self._kept.find_lost(now_s):
            publisher.end("NATS lost batches: the agent sends them again.")

    def close(self, *, newest: bool) -> None:  # noqa: ARG002  (each session has its own subject)
        self._sessions.forget(self)
        self.publisher.end("The stream has ended.")
        if self._unsubscribe is not None:
            self._ending = asyncio.ensure_future(self._end(self._unsubscribe))

    async def _end(self, unsubscribe: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(Exception):  # The connection may be gone.
            await unsubscribe()

    async def _wait(self) -> None:
        """Wait for an acknowledgment; raises `PerfdError` when the session has ended."""
        publisher = self.publisher
        publisher.changed.clear()
        changed = asyncio.ensure_future(publisher.changed.wait())
        outcomes: set[asyncio.Future[Any]] = {changed, publisher.ended}
        try:
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if publisher.ended.done():
            raise PerfdError(publisher.ended.result())

    def _sender(self, first_sequence: int) -> Hello:
        now_ns = self._sessions.clock.unix_ns()
        return replace(
            self._hello, first_sequence=first_sequence, sent_unix_ns=now_ns, keeps_until_stored=True
        )

    def _receive(self, message: AggregatorMessage | None) -> None:
        match message:
            case Stored():
                self._kept.stored(message)
                self._changed()
            case Welcome():
                self._kept.welcomed(message)
                if not self._welcome.done():
                    self._welcome.set_result(message)
                elif message.renew_identity:
                    # The next stream begins with this answer.
                    self.publisher.end("The agent has to take a new identity.")
                elif self._is_asked:
                    # Another aggregator reads, which has asked for nothing yet.
                    self._pass_on(BatchInterval(quiet_s=0.0))
            case CaptureRequest() | CaptureCancel() | NewFinding() | BatchInterval():
                self._pass_on(message)

    def _pass_on(self, message: NodeMessage) -> None:
        if isinstance(message, BatchInterval):
            self._is_asked = message.quiet_s > 0
        if self._early is None:
            self._sessions.deliver(self.agent_id, message)
        else:
            self._early.append(message)
