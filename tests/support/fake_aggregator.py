"""An aggregator for tests of agents: real gRPC on loopback, and as unhelpful as a test wants it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc

from perfd.errors import PerfdError
from perfd.model import (
    Ack,
    AcknowledgeEach,
    AgentMessage,
    AggregatorMessage,
    Batch,
    CaptureStatus,
    Goodbye,
    Hello,
    Welcome,
)
from perfd.wire import agent_messages, convert
from perfd.wire.service import SERVER_OPTIONS


class FakeAggregator:
    """Stores what agents send and acknowledges it; a context manager that listens from entry to exit.

    `refuse` turns new streams away, `hold_acks` stores without a word, `silent` does
    not even welcome, `drop_streams` breaks those that are open. What was stored
    survives `close` when the next fake is given it as `after`; `last_sequences` has the
    newest one by agent.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        *,
        after: FakeAggregator | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.refuse = False
        self.silent = False
        self.hellos: list[Hello] = [] if after is None else after.hellos
        self.batches: list[Batch] = [] if after is None else after.batches
        self.statuses: list[CaptureStatus] = [] if after is None else after.statuses
        self.goodbyes: list[Goodbye] = [] if after is None else after.goodbyes
        self.repeats = 0
        self.hurries = 0
        """How often an agent asked that each batch be acknowledged at once."""
        self._hold_acks = False
        self.last_sequences: dict[str, int] = {} if after is None else after.last_sequences
        self._streams: list[_Stream] = []
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8), options=SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        service = grpc.method_handlers_generic_handler("perfd.wire.v1.Telemetry", {"Connect": handler})
        self._server.add_generic_rpc_handlers((service,))
        try:
            port = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise PerfdError(f"The fake aggregator cannot listen on {address}: {error}") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Break all streams and stop listening."""
        self.drop_streams()
        self._server.stop(grace=None).wait()

    def sequences(self) -> list[int]:
        """The numbers of the stored batches, in the order in which they came."""
        with self._changed:
            return [batch.sequence for batch in self.batches]

    def send(self, message: AggregatorMessage) -> None:
        """Say something to every connected agent."""
        with self._changed:
            for stream in self._streams:
                stream.outbox.put(convert.encode_message(message))

    def send_bytes(self, data: bytes) -> None:
        """Say something that may be no message at all."""
        with self._changed:
            for stream in self._streams:
                stream.outbox.put(data)

    def hold_acks(self) -> None:
        """Store from now on without an acknowledgement."""
        self._hold_acks = True

    def release_acks(self) -> None:
        """Acknowledge what was stored meanwhile, and all that follows."""
        with self._changed:
            self._hold_acks = False
            for stream in self._streams:
                stream.acknowledge(self.last_sequences.get(stream.agent_id, 0))

    def drop_streams(self) -> None:
        """Break every open stream, as a crash does."""
        with self._changed:
            for stream in self._streams:
                stream.outbox.put(None)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
        """Whether `condition` became true; it is looked at whenever a message comes in."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _connect(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if self.refuse:
            context.abort(grpc.StatusCode.UNAVAILABLE, "refused by the test")
        stream = _Stream()
        reader = threading.Thread(target=self._read, args=(requests, stream), daemon=True)
        with self._changed:
            self._streams.append(stream)
        reader.start()
        try:
            while True:
                data = stream.outbox.get()
                if data is None:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "dropped by the test")
                if not data:
                    return
                yield data
        finally:
            with self._changed:
                self._streams.remove(stream)

    def _read(self, requests: Iterator[bytes], stream: _Stream) -> None:
        try:
            for data in requests:
                message = agent_messages.decode_agent_message(data)
                with self._changed:
                    if message is not None:
                        self._take(message, stream)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass  # The agent broke the stream.
        finally:
            stream.outbox.put(b"")

    def _take(self, message: AgentMessage, stream: _Stream) -> None:
        match message:
            case Hello():
                stream.agent_id = message.agent_id
                self.hellos.append(message)
                if not self.silent:
                    last = self.last_sequences.get(message.agent_id, 0)
                    stream.outbox.put(convert.encode_message(Welcome(last_sequence=last, sent_unix_ns=0)))
            case Batch():
                last = self.last_sequences.get(stream.agent_id, 0)
                if message.sequence <= last:
                    self.repeats += 1
                else:
                    self.batches.append(message)
                    self.last_sequences[stream.agent_id] = message.sequence
                if not self._hold_acks:
                    stream.acknowledge(max(last, message.sequence))
            case CaptureStatus():
                self.statuses.append(message)
            case AcknowledgeEach():
                self.hurries += 1
            case Goodbye():
                self.goodbyes.append(message)


class _Stream:
    """One connected agent. The outbox ends with None to break the stream, with `b""` to end it."""

    def __init__(self) -> None:
        self.agent_id = ""
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def acknowledge(self, sequence: int) -> None:
        self.outbox.put(convert.encode_message(Ack(sequence=sequence)))
