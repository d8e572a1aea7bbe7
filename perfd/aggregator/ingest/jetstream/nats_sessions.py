"""Takes messages that agents published: who sent them, what becomes of each, who is silent. No network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.state import AgentState
from perfd.errors import BatchError, PerfdError, RefusedError, WireError
from perfd.model import AgentMessage, Batch, CaptureStatus, Goodbye, Hello, Stored
from perfd.wire import convert, encoded_messages, subjects

SILENT_AFTER_S = 30.0
"""An agent that published nothing for so long is gone; it reports itself every 10 s."""


_WAITING_BEFORE = 64
"""Batches of an unknown agent that may be in the stream before one that came directly: as many as agents
publish without an acknowledgment."""
_SAID_AT_ONCE = 16
"""So many stored batches of an agent are said together, as gRPC acknowledges them."""
_SAID_WITHIN_S = 5.0
"""Or as many as there are after so long: agents keep them on their disks meanwhile. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is to be published for an agent."""

    subject: str
    data: bytes


@dataclass(slots=True, kw_only=True)
class Receipt:
    """What became of a message."""

    subject: str = ""
    """On which the message came."""
    agent: AgentState | None = None
    sequence: int | None = None
    awaits_history: bool = False
    """It has no sequence, and has to be stored before the stream may forget it."""
    late: bool = False
    """Its sequence was missing, so that what is stored up to a later one does not cover it."""
    stored: bool = False
    """Set from another thread."""
    kept_for_later: bool = False
    """It cannot be taken now: the stream has to deliver it again."""
    refused: str = ""
    """Why it was not taken and never will be by this aggregator."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether the stream may forget the message: all of it is stored, or nothing will be."""
        if self.awaits_history and not self.stored:
            return False
        if self.stored or self.agent is None or self.sequence is None:
            return not self.kept_for_later
        return not self.late and self.agent.stored_sequence >= self.sequence and not self.kept_for_later


@dataclass(slots=True)
class _Session:
    name: str
    number: int
    agent: AgentState
    answers: str
    received_s: float
    keeps_until_stored: bool = False
    """The agent is informed about what is stored."""
    stale: bool = False
    """The agent has to be greeted again."""
    unsaid: dict[str, list[int]] = field(default_factory=dict)
    """By subject, batches that are stored and that the agent is to be informed about."""
    unsaid_since_s: float = 0.0


class NatsSessions:
    """Not thread-safe, but for `subject_of`. The subject on which a message came says which node sent it."""

    def __init__(self, intake: Ingest, cluster: str, monotonic_s: Callable[[], float]) -> None:
        self._intake = intake
        self._cluster = cluster
        self._monotonic_s = monotonic_s
        # Not those of gRPC's streams.
        self._numbers = itertools.count(-1, -1)
        self._sessions: dict[str, _Session] = {}

    @property
    def unkept(self) -> bool:
        """Whether an agent's batches, for which history had no room, have to be delivered again now."""
        return any(self._intake.unkept(session.agent) for session in self._sessions.values())

    def take(self, subject: str, data: bytes, *, direct: bool = False) -> Receipt:
        """Take a message, `direct` if not in the stream's order; raises nothing for what is in it."""
        try:
            return self._take(subject, data, direct=direct)
        except WireError as error:
            self._intake.malformed()
            return Receipt(refused=str(error))
        except PerfdError as error:
            return Receipt(refused=str(error))

    def begin_anew(self) -> None:
        """Greet all agents again: the stream delivers in order what is not stored."""
        for session in self._sessions.values():
            session.stale = True

    def begin_listening(self) -> None:
        """Take no agent for silent because of the time before."""
        now_s = self._monotonic_s()
        for session in self._sessions.values():
            session.received_s = now_s

    def close_silent(self) -> None:
        """Close the sessions of agents that published nothing for a while."""
        now_s = self._monotonic_s()
        self._close(
            [k for k, session in self._sessions.items() if now_s - session.received_s > SILENT_AFTER_S]
        )

    def close_all(self) -> None:
        """Close all sessions, because this aggregator no longer reads."""
        self._close(list(self._sessions))

    def subject_of(self, node: str) -> str | None:
        """Where the agent of a node listens for messages; None if none has a session."""
        found = (session for session in tuple(self._sessions.values()) if session.agent.node == node)
        session = next(found, None)
        return None if session is None else f"{session.answers}.message"

    def _take(self, subject: str, data: bytes, *, direct: bool) -> Receipt:
        published, invalid = _opened(data)
        sender, message = published.sender, published.message
        receipt = Receipt(subject=subject)
        # What it publishes again was in its spool when it left.
        left = published.again and isinstance(message, Batch) and self._intake.has_left(sender.agent_id)
        session = self._session_of(subjects.node_of(subject), published, receipt, direct=direct)
        if session is None:
            return receipt
        session.received_s = self._monotonic_s()
        if isinstance(message, Hello):
            return receipt
        if isinstance(message, Batch):
            if direct and not self._intake.may_overtake(session.agent, message):
                receipt.kept_for_later = True
                return receipt
            if not published.again and not direct:
                self._intake.delivered(session.agent, message.sequence)
        session.keeps_until_stored = sender.keeps_until_stored
        self._pass_on(session, published, invalid, receipt)
        if invalid is not None:
            receipt.refused = str(invalid)
        if left and isinstance(message, Batch):
            self._intake.leave(session.agent, message.sent_unix_ns)
        if left or isinstance(message, Goodbye):
            self._close([sender.agent_id])
        return receipt

    def settled(self, receipt: Receipt) -> None:
        """Note that a message is settled, to report it to its agent if its batch was stored here.

        A repeat is not known to be stored: among the numbers that were passed is one that got lost.
        """
        if receipt.agent is None or receipt.sequence is None:
            return
        if self._intake.has_history and not receipt.stored:
            return
        session = self._sessions.get(receipt.agent.agent_id)
        if session is not None and session.keeps_until_stored:
            if not session.unsaid:
                session.unsaid_since_s = self._monotonic_s()
            session.unsaid.setdefault(receipt.subject, []).append(receipt.sequence)

    def stored_messages(self) -> list[Answer]:
        """What agents are to receive now about what is stored."""
        now_s = self._monotonic_s()
        answers = []
        for session in self._sessions.values():
            count = sum(map(len, session.unsaid.values()))
            if not count or (count < _SAID_AT_ONCE and now_s - session.unsaid_since_s < _SAID_WITHIN_S):
                continue
            answers += [
                Answer(
                    subject=f"{session.answers}.message",
                    data=convert.encode_message(Stored(subject=subject, sequences=sequences)),
                )
                for subject, sequences in session.unsaid.items()
            ]
            session.unsaid = {}
        return answers

    def _pass_on(
        self,
        session: _Session,
        published: encoded_messages.Published,
        invalid: BatchError | None,
        receipt: Receipt,
    ) -> None:
        agent, sender = session.agent, published.sender

        def decoded() -> AgentMessage | None:
            if invalid is not None:
                raise invalid
            return published.message

        take = partial(
            self._intake.take,
            agent,
            decoded,
            stored=partial(setattr, receipt, "stored", True),
            again=published.again,
        )
        missing = frozenset(agent.missing)
        try:
            receipt.sequence = take()
        except RefusedError:
            if sender.first_sequence <= agent.last_sequence + 1:
                raise
            # The agent gave up many batches, as its sender states.
            credential = _credential(sender.node, session.agent.namespace or "")
            self._intake.hello(sender, session.number, credential)
            receipt.sequence = take()
        receipt.agent = agent
        receipt.awaits_history = isinstance(published.message, CaptureStatus)
        receipt.late = self._intake.has_history and (receipt.sequence in missing or published.again)

    def _session_of(
        self, node: str, published: encoded_messages.Published, receipt: Receipt, *, direct: bool
    ) -> _Session | None:
        """The sender's session, a new one where it has none that goes on; None if it cannot have one now."""
        sender, name = published.sender, published.session
        session = self._sessions.get(sender.agent_id)
        if session is None or session.stale or session.name != name or session.agent.stream != session.number:
            return self._greet(node, published, receipt, direct=direct)
        if sender.node != node or session.answers != subjects.to_session(self._cluster, node, name):
            raise self._foreign(sender, node)
        return session

    def _greet(
        self, node: str, published: encoded_messages.Published, receipt: Receipt, *, direct: bool
    ) -> _Session | None:
        sender, name = published.sender, published.session
        if sender.node != node:
            raise self._foreign(sender, node)
        answers = subjects.to_session(self._cluster, node, name)
        old = self._sessions.get(sender.agent_id)
        if old is not None and not old.stale and old.agent.refused:
            # History had no room for some of its batches; they come first.
            receipt.kept_for_later = True
            return None
        number = next(self._numbers)
        if direct:
            # Those before it may wait in the stream: they are late, and no repeats.
            sender = replace(sender, first_sequence=self._intake.next_sequence(sender, _WAITING_BEFORE))
        agent, welcome = self._intake.hello(sender, number, _credential(node, published.namespace))
        welcome = replace(welcome, says_stored=True)
        receipt.answers.append(Answer(subject=f"{answers}.message", data=convert.encode_message(welcome)))
        if agent is None:
            receipt.refused = "Another spool has this agent's identity: the agent has to take a new one."
            return None
        session = _Session(
            name, number, agent, answers, self._monotonic_s(), keeps_until_stored=sender.keeps_until_stored
        )
        if old is not None:
            session.unsaid, session.unsaid_since_s = old.unsaid, old.unsaid_since_s
        self._sessions[sender.agent_id] = session
        self._intake.events.agent_connected(agent.node)
        return session

    def _foreign(self, sender: Hello, node: str) -> RefusedError:
        return self._intake.refuse(
            f"A message on the subject of node {node} names node {sender.node}.", actor=f"NATS {node}"
        )

    def _close(self, agent_ids: Collection[str]) -> None:
        for agent_id in agent_ids:
            if (session := self._sessions.pop(agent_id, None)) is not None:
                self._intake.left(session.agent, session.number)
                self._intake.events.agent_gone(session.agent.node)


def _opened(data: bytes) -> tuple[encoded_messages.Published, BatchError | None]:
    """A message with its sender, or the sender alone and why its batch is invalid; raises `WireError`."""
    try:
        return encoded_messages.decode_published(data), None
    except BatchError as error:
        return encoded_messages.decode_sender(data), error


def _credential(node: str, namespace: str) -> AgentCredential:
    return AgentCredential(principal=f"NATS {node}", nodes=frozenset({node}), namespace=namespace or None)
