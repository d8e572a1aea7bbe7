"""An agent for tests of aggregators: real gRPC, and every message sent only when the test says so."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import grpc

from perfd.model import (
    Ack,
    AgentMessage,
    AggregatorMessage,
    Batch,
    CaptureTool,
    Goodbye,
    Hello,
    NewFinding,
    Record,
    Welcome,
)
from perfd.wire import convert
from perfd.wire.service import CLIENT_OPTIONS, CONNECT_METHOD

_PATIENCE_S = 20.0


class FakeAgent:
    """One stream to an aggregator; a context manager that is connected from entry to exit.

    `hello` and `send` wait for the aggregator's answer, `say` does not. When the
    aggregator ends the stream, waiting raises `grpc.RpcError`.
    """

    def __init__(
        self,
        address: str,
        *,
        node: str = "node0",
        agent_id: str = "agent0",
        credentials: grpc.ChannelCredentials | None = None,
        epochs: tuple[str, str] = ("", ""),
        token: str | None = None,
    ) -> None:
        self.node = node
        self.agent_id = agent_id
        self.epochs = epochs
        """Of its spool's present life, and of the one before."""
        self.sequence = 0
        self.new_findings: list[str] = []
        """Jobs whose new findings it was sent."""
        options = (*CLIENT_OPTIONS,)
        self._channel = (
            grpc.insecure_channel(address, options=options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=options)
        )
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method = self._channel.stream_stream(
            CONNECT_METHOD, request_serializer=None, response_deserializer=None
        )
        self._call: Any = method(iter(self._outgoing.get, None), timeout=_PATIENCE_S, metadata=metadata)
        self._answers = cast("Iterator[bytes]", self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()

    def hello(
        self,
        *,
        sent_unix_ns: int = 0,
        first_sequence: int = 1,
        tools: Sequence[CaptureTool] = (),
        acknowledge_every: int = 0,
    ) -> Welcome:
        """Introduce the agent; returns the welcome."""
        self.say(
            Hello(
                agent_id=self.agent_id,
                node=self.node,
                perfd_version="test",
                sent_unix_ns=sent_unix_ns,
                first_sequence=first_sequence,
                capture_tools=tuple(tools),
                spool_epoch=self.epochs[0],
                previous_epoch=self.epochs[1],
                acknowledge_every=acknowledge_every,
            )
        )
        welcome = self.receive()
        if not isinstance(welcome, Welcome):
            raise TypeError(f"The aggregator answered a Hello with {welcome!r}.")
        return welcome

    def send(self, *records: Record, sequence: int | None = None, sent_unix_ns: int = 0) -> int:
        """Send a batch under the next sequence, or another, and wait until it is stored.

        Returns the sequence up to which all is stored. If that takes long, the aggregator first acknowledges
        what it received; that is ignored.
        """
        self.sequence = self.sequence + 1 if sequence is None else sequence
        self.say(Batch(sequence=self.sequence, sent_unix_ns=sent_unix_ns, records=records))
        return self.wait_stored(self.sequence)

    def wait_stored(self, sequence: int) -> int:
        """Wait until all up to a sequence is stored; returns the sequence up to which it is."""
        while (acknowledged := self.acknowledged()).sequence < sequence:
            pass
        return acknowledged.sequence

    def acknowledged(self) -> Ack:
        """The next acknowledgment."""
        while not isinstance(message := self.receive(), Ack):
            pass
        return message

    def leave(self, *, sent_unix_ns: int = 0) -> None:
        """Say goodbye and end the stream; returns when the aggregator has ended it too."""
        self.say(Goodbye(reason="The test stops the agent.", sent_unix_ns=sent_unix_ns))
        self._outgoing.put(None)
        self.end()

    def say(self, message: AgentMessage | bytes) -> None:
        """Send a message, or bytes that are none."""
        self._outgoing.put(message if isinstance(message, bytes) else convert.encode_message(message))

    def receive(self) -> AggregatorMessage:
        """The next message of the aggregator; new findings are only noted."""
        message = convert.decode_aggregator_message(next(self._answers))
        if message is None:
            raise TypeError("The aggregator sent a message of an unknown kind.")
        if isinstance(message, NewFinding):
            self.new_findings.append(message.job)
            return self.receive()
        return message

    def end(self) -> grpc.StatusCode:
        """Wait until the aggregator ends the stream; returns its status."""
        try:
            for _ in self._answers:
                pass
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = self._call.code()
        return code

    @property
    def ended(self) -> bool:
        """Whether the aggregator has ended the stream."""
        return bool(self._call.done())

    @property
    def reason(self) -> str:
        """What the aggregator said when it ended the stream."""
        return str(self._call.details())
