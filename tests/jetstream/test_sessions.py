"""What becomes of published messages, without a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.agent.spool.spool import Spool
from perfd.agent.uplink import NatsUplink
from perfd.aggregator.audit import AuditLog
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.jetstream.nats_sessions import SILENT_AFTER_S, NatsSessions, Receipt
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AggregatorState
from perfd.clock import VirtualClock
from perfd.config import NatsConfig, NatsUplinkConfig, UplinkConfig
from perfd.errors import ConfigError, WireError
from perfd.model import (
    AgentMessage,
    Batch,
    CaptureState,
    CaptureStatus,
    Goodbye,
    Hello,
    Stored,
    TrainingStep,
    Welcome,
)
from perfd.net import NatsConnector
from perfd.wire import convert, encoded_messages, subjects

SESSION = "0123456789abcdef" * 2


class Events:
    """Notes who came and left."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def agent_connected(self, node: str) -> None:
        self.seen.append(("connected", node))

    def agent_gone(self, node: str) -> None:
        self.seen.append(("gone", node))

    def capture_status(self, node: str, status: Any) -> None:
        self.seen.append(("status", node))

    def capture_files_removed(self, node: str, removed: Any) -> None:
        self.seen.append(("removed", node))

    def capture_file_upload(self, node: str, upload: Any) -> None:
        self.seen.append(("upload", node))


class History:
    """Takes rows when a test says so."""

    def __init__(self) -> None:
        self.has_room = True
        self.pending: list[Callable[[], None]] = []

    def submit(self, _statements: Any, done: Callable[[], None] | None = None) -> bool:
        if self.has_room and done is not None:
            self.pending.append(done)
        return self.has_room

    def commit(self) -> None:
        while self.pending:
            self.pending.pop(0)()


class Published:
    """Sessions and the messages of one agent."""

    def __init__(self, history: History | None) -> None:
        self.clock = VirtualClock(1)
        self.state = AggregatorState.empty(Limits(), AuditLog(None, self.clock), [])
        self.events = Events()
        intake = Ingest(self.state, self.clock, history, self.events)  # type: ignore[arg-type]
        self.sessions = NatsSessions(intake, "default", self.clock.monotonic_s)

    def message(
        self,
        message: AgentMessage,
        *,
        first: int = 1,
        session: str = SESSION,
        node: str = "n0",
        namespace: str = "",
        again: bool = False,
        **hello: Any,
    ) -> bytes:
        sender = Hello(
            agent_id="a", node=node, perfd_version="", sent_unix_ns=0, first_sequence=first, **hello
        )
        return convert.encode_message(message) + encoded_messages.encode_sender(
            sender, session, namespace, again=again
        )

    def take(self, message: AgentMessage, *, subject_node: str = "n0", **options: Any) -> Receipt:
        subject = subjects.from_agent("default", "j", subject_node)
        return self.sessions.take(subject, self.message(message, **options))

    def batch(self, sequence: int, **options: Any) -> Receipt:
        records = [TrainingStep(job="j", step=sequence)]
        return self.take(Batch(sequence=sequence, sent_unix_ns=0, records=records), **options)

    def hello(self, **options: Any) -> Receipt:
        return self.take(
            Hello(agent_id="a", node="n0", perfd_version="", sent_unix_ns=0, first_sequence=1), **options
        )


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_any_name_is_one_token_and_comes_back(cluster: str, job: str, node: str) -> None:
    subject = subjects.from_agent(cluster, job, node)
    assert subject.count(".") == 4
    assert not set(subject) & set("*> \t\r\n")
    assert subject.isascii()
    assert subjects.node_of(subject) == node


@pytest.mark.parametrize(
    "subject", ["", "perfd.from.a.b", "perfd.to.a.b.c", "perfd.from.a.b.c.d", "perfd.from.a.b."]
)
def test_other_subjects_name_no_node(subject: str) -> None:
    with pytest.raises(WireError):
        subjects.node_of(subject)


@pytest.mark.parametrize("session", ["", "a.b", ">", "A" * 32, "0" * 31, "0" * 32 + "\n"])
def test_a_session_cannot_lead_answers_elsewhere(session: str) -> None:
    with pytest.raises(WireError):
        subjects.to_session("c", "n", session)


@pytest.mark.parametrize(("stated", "known"), [("", None), ("team", "team")])
def test_a_gateway_limits_an_agent_to_a_namespace(stated: str, known: str | None) -> None:
    published = Published(None)
    receipt = published.batch(1, namespace=stated)
    assert receipt.agent is not None
    assert receipt.agent.namespace == known


@pytest.mark.parametrize("more", [{"session": "0" * 32}, {"session": "", "namespace": "other"}])
def test_a_stream_cannot_name_another_sender(more: dict[str, str]) -> None:
    hello = Hello(agent_id="a", node="n0", perfd_version="", sent_unix_ns=0, first_sequence=1)
    batch = convert.encode_message(Batch(sequence=7, sent_unix_ns=0, records=[]))
    assert encoded_messages.sequence_of(batch) == 7
    assert encoded_messages.sequence_of(convert.encode_message(hello)) is None
    with pytest.raises(WireError, match="another sender"):
        encoded_messages.sequence_of(batch + encoded_messages.encode_sender(hello, **more))


def test_a_batch_is_settled_when_it_is_stored() -> None:
    history = History()
    published = Published(history)
    receipt = published.batch(1)
    assert not receipt.settled
    history.commit()
    assert receipt.settled
    assert Published(None).batch(1).settled


def test_a_repeat_is_settled_when_the_first_one_is_stored_and_counts_once() -> None:
    history = History()
    published = Published(history)
    published.batch(1)
    repeat = published.batch(1)
    assert not repeat.settled
    history.commit()
    assert repeat.settled
    assert (published.state.counters.batches, published.state.counters.repeated_batches) == (1, 1)


def test_a_late_batch_is_settled_when_it_is_stored_itself() -> None:
    history = History()
    published = Published(history)
    published.batch(1)
    published.batch(3)
    history.commit()
    late = published.batch(2)
    assert not late.settled
    history.commit()
    assert late.settled


def test_what_history_had_no_room_for_is_stored_when_it_is_delivered_again() -> None:
    history = History()
    published = Published(history)
    assert not published.batch(1).settled
    history.has_room = False
    refused = published.batch(2)
    assert not published.sessions.unkept
    history.has_room = True
    after = published.batch(3)
    history.commit()
    assert published.sessions.unkept
    assert not refused.settled
    assert not after.settled
    # Not even a new session of the agent lets anything overtake it.
    overtaking = published.batch(4, session="f" * 32)
    assert overtaking.kept_for_later
    assert not overtaking.settled
    published.sessions.begin_anew()
    again = [published.batch(sequence) for sequence in (2, 3, 4)]
    assert not any(receipt.settled for receipt in again)
    history.commit()
    assert all(receipt.settled for receipt in again)
    counters = published.state.counters
    assert (counters.batches, counters.lost_batches) == (4, 0)


def test_a_hello_is_answered_with_what_is_stored() -> None:
    history = History()
    published = Published(history)
    published.batch(1)
    history.commit()
    (answer,) = published.hello(session="f" * 32).answers
    assert answer.subject == f"perfd.to.default.n0.{'f' * 32}.message"
    welcome = convert.decode_aggregator_message(answer.data)
    assert isinstance(welcome, Welcome)
    assert welcome.last_sequence == 1
    assert published.sessions.subject_of("n0") == answer.subject


def test_the_subject_decides_who_sends() -> None:
    published = Published(None)
    receipt = published.batch(1, subject_node="n1")
    assert receipt.refused == "A message on the subject of node n1 names node n0."
    published.batch(1)
    assert published.batch(2, subject_node="n1").refused
    # Also with the agent's id and session, as an agent of another node that knew them would send them.
    assert published.batch(2, node="n1", subject_node="n1").refused
    assert published.state.counters.batches == 1
    assert sum(published.state.audit.counts().values()) == 3


def test_a_copied_spool_is_asked_for_a_new_identity() -> None:
    published = Published(None)
    published.batch(1, spool_epoch="one")
    receipt = published.batch(2, session="f" * 32, spool_epoch="two", previous_epoch="zero")
    assert receipt.refused
    welcome = convert.decode_aggregator_message(receipt.answers[0].data)
    assert isinstance(welcome, Welcome)
    assert welcome.renew_identity


def test_batches_that_the_agent_gave_up_are_a_gap_and_no_jump() -> None:
    published = Published(None)
    published.batch(1)
    receipt = published.batch(10_000, first=10_000)
    assert (receipt.refused, receipt.settled) == ("", True)
    assert published.state.counters.lost_batches == 9_998
    assert published.batch(20_000, first=2).refused


@pytest.mark.parametrize("data", [b"", b"\xff", convert.encode_message(Goodbye(reason="", sent_unix_ns=1))])
def test_what_does_not_say_who_sends_it_is_refused(data: bytes) -> None:
    published = Published(None)
    receipt = published.sessions.take(subjects.from_agent("default", None, "n0"), data)
    assert receipt.refused
    assert receipt.settled
    assert published.state.counters.malformed_messages == 1


def test_an_agent_that_is_silent_or_leaves_is_gone() -> None:
    published = Published(None)
    published.batch(1)
    published.clock.advance(SILENT_AFTER_S + 1)
    published.sessions.begin_listening()
    published.sessions.close_silent()
    assert published.state.agents.connected() == 1
    published.clock.advance(SILENT_AFTER_S + 1)
    published.sessions.close_silent()
    assert published.state.agents.connected() == 0
    published.batch(2)
    published.take(Goodbye(reason="", sent_unix_ns=1))
    assert published.events.seen == [("connected", "n0"), ("gone", "n0")] * 2


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"servers": []}, "name at least one server"),
        ({"servers": ["http://a:1"]}, "must be nats://HOST:PORT"),
        ({"servers": ["nats://u:p@127.0.0.1:1"]}, "must not contain credentials"),
        ({"servers": ["nats://10.0.0.1:4222"]}, "would be plain text"),
        ({"servers": ["nats://127.0.0.1:1"], "nkey_file": "/none"}, "/none cannot be read"),
        (
            {"servers": ["nats://127.0.0.1:1"], "nkey_file": "a", "credentials_file": "b"},
            "are mutually exclusive",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_one_sentence(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        NatsConnector(NatsConfig(**config), key="nats", name="test")


@pytest.mark.parametrize("server", ["nats://127.0.0.1:4222", "nats://localhost:4222", "tls://10.0.0.1:4222"])
def test_servers_that_may_be_used(server: str) -> None:
    NatsConnector(NatsConfig(servers=[server]), key="nats", name="test")


def test_settings_of_grpc_beside_nats_are_refused(tmp_path: Path) -> None:
    config = UplinkConfig(nats=NatsUplinkConfig(servers=["nats://127.0.0.1:1"]), token_file="token")
    spool = Spool(tmp_path, max_bytes=1 << 20)
    try:
        with pytest.raises(ConfigError, match="for gRPC"):
            NatsUplink(config, node="n", spool=spool, clock=VirtualClock(), on_request=print)
    finally:
        spool.close()


def received(published: Published) -> list[Stored]:
    """What the agent receives about what is stored."""
    messages = [convert.decode_aggregator_message(one.data) for one in published.sessions.stored_messages()]
    return [one for one in messages if isinstance(one, Stored)]


def test_an_agent_that_keeps_its_batches_learns_once_which_are_stored() -> None:
    history = History()
    published = Published(history)
    receipts = [published.batch(sequence, keeps_until_stored=True) for sequence in (1, 2, 4)]
    published.clock.advance(10.0)
    assert received(published) == []
    history.commit()
    for receipt in receipts:
        published.sessions.settled(receipt)
    assert received(published) == []
    published.clock.advance(10.0)
    assert received(published) == [
        Stored(subject=subjects.from_agent("default", "j", "n0"), sequences=(1, 2, 4))
    ]
    published.clock.advance(10.0)
    assert received(published) == []


def test_an_agent_of_an_earlier_version_receives_nothing() -> None:
    history = History()
    published = Published(history)
    receipt = published.batch(1)
    history.commit()
    published.sessions.settled(receipt)
    published.clock.advance(10.0)
    assert received(published) == []


def test_a_number_that_was_passed_is_said_to_be_stored_only_when_it_was_published_again() -> None:
    history = History()
    published = Published(history)
    # As after a restart, which knows the highest number alone.
    published.state.agents.restore("a", "n0", 9, 0.0)
    published.batch(10, keeps_until_stored=True)
    history.commit()
    lost = published.batch(5, keeps_until_stored=True)
    assert lost.settled
    published.sessions.settled(lost)
    again = published.batch(5, keeps_until_stored=True, again=True)
    assert not again.settled
    history.commit()
    assert again.settled
    published.sessions.settled(again)
    published.clock.advance(10.0)
    assert [list(one.sequences) for one in received(published)] == [[5]]


def test_a_status_of_a_capture_is_settled_once_history_has_what_came_of_it() -> None:
    history = History()
    published = Published(history)
    receipt = published.take(CaptureStatus(capture_id="c", state=CaptureState.DONE, time_unix_ns=1))
    assert ("status", "n0") in published.events.seen
    assert not receipt.settled
    history.commit()
    assert receipt.settled
    assert (
        Published(None).take(CaptureStatus(capture_id="c", state=CaptureState.DONE, time_unix_ns=1)).settled
    )


def test_a_status_that_cannot_be_taken_is_settled() -> None:
    published = Published(History())

    def fails(_node: str, _status: Any) -> None:
        raise ValueError("No such capture.")

    published.events.capture_status = fails  # type: ignore[method-assign]
    assert published.take(CaptureStatus(capture_id="c", state=CaptureState.DONE, time_unix_ns=1)).settled
