"""How streams of agents end while gRPC still sends them a message."""

import asyncio

import grpc

from perfd.aggregator.ingest.grpc_server import TelemetryServer
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AggregatorState
from perfd.clock import SystemClock
from perfd.model import Hello
from perfd.wire.convert import encode_message


class _Context:
    """Of a stream as gRPC has it: one operation of sending at a time, the last of which is the status."""

    def __init__(self) -> None:
        self.may_send = asyncio.Event()
        self.ended: grpc.StatusCode | None = None
        self._sending = False
        self._received: asyncio.Queue[bytes | object] = asyncio.Queue()
        self._received.put_nowait(
            encode_message(
                Hello(agent_id="agent", node="node", perfd_version="", sent_unix_ns=0, first_sequence=1)
            )
        )

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def leave(self) -> None:
        self._received.put_nowait(grpc.aio.EOF)

    async def read(self) -> bytes | object:
        return await self._received.get()

    async def write(self, _data: bytes) -> None:
        assert not self._sending
        self._sending = True
        await self.may_send.wait()
        self._sending = False

    async def abort(self, code: grpc.StatusCode, _details: str) -> None:
        if self._sending:
            raise grpc.aio.UsageError("TOO_MANY_OPERATIONS")
        self.ended = code
        self.leave()
        raise grpc.aio.AbortError("Locally aborted.")


class _Events:
    def agent_connected(self, node: str) -> None: ...

    def agent_gone(self, node: str) -> None: ...


def test_a_replaced_stream_ends_once_its_welcome_is_sent():
    async def of_two() -> _Context:
        server = TelemetryServer(Ingest(AggregatorState.empty(Limits()), SystemClock(), None, _Events()))
        old, new = _Context(), _Context()
        serving = [asyncio.create_task(server._connect(None, old))]
        await asyncio.sleep(0)
        new.may_send.set()
        serving.append(asyncio.create_task(server._connect(None, new)))
        await asyncio.sleep(0.01)
        assert old.ended is None
        old.may_send.set()
        await asyncio.wait(serving[:1], timeout=5)
        new.leave()
        await asyncio.wait_for(asyncio.gather(*serving), 5)
        return old

    assert asyncio.run(of_two()).ended is grpc.StatusCode.ABORTED
