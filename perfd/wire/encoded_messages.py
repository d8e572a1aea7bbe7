"""Messages that stay encoded, published ones, which name their sender, and batches in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import BytesIO
from mmap import mmap
from typing import Any, cast

from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed

from perfd.errors import WireError
from perfd.model import AgentMessage, Batch, Hello
from perfd.protobuf_encoding import varint
from perfd.wire.agent_messages import check_record_count
from perfd.wire.convert import HELLO, batch_bytes, batch_from_wire, from_wire, parse
from perfd.wire.sample_tables import decode_table
from perfd.wire.v1 import telemetry_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A message that was published instead of streamed."""

    sender: Hello
    """As if the agent had opened a stream with this message."""
    session: str
    """Which of its sessions answers go to."""
    message: AgentMessage | None
    """None for an unknown kind, from a newer agent."""
    namespace: str = ""
    """The Kubernetes namespace that a gateway limits the agent to; empty: any."""
    again: bool = False
    """The batch was published before."""


def jobs_of(agent_message: bytes) -> set[str]:
    """The jobs named by the records in an encoded batch; raises `WireError`."""
    records: Iterable[pb.Record] = parse(pb.AgentMessage, agent_message).batch.records
    named = (getattr(record, record.WhichOneof("kind") or "event") for record in records)
    return {job for record in named if (job := getattr(record, "job", ""))}


def sequence_of(agent_message: bytes) -> int | None:
    """The sequence of an encoded batch, whose records stay encoded; None for other messages.

    Raises `WireError` if it cannot be read, has too many records, or states a sender: streams do not.
    """
    check_record_count(agent_message)
    envelope = parse(pb.AgentMessage, agent_message)
    if envelope.HasField("sender") or envelope.session or envelope.namespace:
        raise WireError("A message in a stream must not name another sender.")
    return envelope.batch.sequence if envelope.WhichOneof("message") == "batch" else None


def encode_sender(sender: Hello, session: str, namespace: str = "", *, again: bool = False) -> bytes:
    """What makes an encoded message a published one, when it follows that; raises `WireError`."""
    try:
        hello = HELLO.to_wire(sender)
        envelope = pb.AgentMessage(
            session=session, namespace=namespace, again=again, **cast("Any", {"sender": hello})
        )
        return envelope.SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"A Hello cannot be sent: {error}.") from error


def decode_sender(data: bytes) -> Published:
    """Who published a message, which stays encoded; raises `WireError` if that is missing."""
    check_record_count(data)
    return _sender(parse(pb.AgentMessage, data))


def decode_published(data: bytes) -> Published:
    """A message with its sender; raises as `decode_agent_message`, and `WireError` without a sender."""
    check_record_count(data)
    envelope = parse(pb.AgentMessage, data)
    return replace(_sender(envelope), message=cast("AgentMessage | None", from_wire(envelope)))


def encode_batch(batch: Batch) -> bytes:
    """A length-prefixed batch, as stored in files; raises `WireError`."""
    data = batch_bytes(batch)
    return varint(len(data)) + data


def decode_batch(data: BytesIO | mmap) -> Batch | None:
    """The next batch written by `encode_batch`; None at the end. Raises `WireError`, also if truncated."""
    try:
        message = parse_length_prefixed(pb.Batch, cast("BytesIO", data))
    except (DecodeError, ValueError, OverflowError) as error:
        raise WireError(f"A Batch cannot be decoded: {error}.") from error
    return None if message is None else batch_from_wire(message, decode_table)


def with_sequence(agent_message: bytes, sequence: int) -> bytes:
    """An encoded batch message with another sequence number."""
    envelope = parse(pb.AgentMessage, agent_message)
    envelope.batch.sequence = sequence
    return envelope.SerializeToString()


def _sender(envelope: pb.AgentMessage) -> Published:
    if not envelope.HasField("sender"):
        raise WireError("A published message must say who sends it.")
    sender = cast("Hello", HELLO.from_wire(envelope.sender))
    return Published(
        sender=sender,
        session=envelope.session,
        message=None,
        namespace=envelope.namespace,
        again=envelope.again,
    )
