"""Agents without collectors, for the benchmarks of fleets."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio

from benchmarks.aggregator_process import AggregatorProcess
from perfd.agent.collection.collector_task import HEALTH_INTERVAL_S
from perfd.collector_loading import load_collector
from perfd.model import (
    Ack,
    Batch,
    BatchInterval,
    CollectorHealth,
    GpuInfo,
    Hello,
    JobDescription,
    ParallelLayout,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
    Welcome,
)
from perfd.wire import subjects
from perfd.wire.convert import decode_aggregator_message, encode_message
from perfd.wire.encoded_messages import encode_sender
from perfd.wire.service import CLIENT_OPTIONS, CONNECT_METHOD

GPUS = 8
_GPU_COLUMNS = [column.name for column in load_collector("nvml").columns if column.scope is Scope.GPU]
_NODE_COLUMNS = [f"host_metric{number}_bytes" for number in range(40)]
_WINDOW = 64
"""Default of an agent's `max_unacknowledged`."""
ACKNOWLEDGE_EVERY = 16
"""What such an agent asks for."""
_HEALTH_EVERY = round(HEALTH_INTERVAL_S)
"""Batches between two reports of a collector that works."""
_CHANNELS = 8
_CONNECT_AT_ONCE = 1_000
"""Below the streams without a Hello that an aggregator holds of one address: all agents here have one."""


class Sender(Protocol):
    """An agent that sends what it is given."""

    quiet_s: float
    """What the aggregator asked for, 0 for nothing."""

    async def send(self, batches: list[bytes]) -> None:
        """Send batches, at most a window ahead of what is acknowledged."""

    async def restart(self) -> None:
        """Connect again."""

    async def settle(self) -> None:
        """Wait until all is acknowledged."""


class FakeAgent:
    """One stream; batches are shared between agents, since only the Hello names the node."""

    def __init__(self, channel: grpc.aio.Channel, number: int, *, acknowledge_every: int) -> None:
        self._connect = channel.stream_stream(CONNECT_METHOD)
        self._call = self._connect()
        self._every = acknowledge_every
        self._number = number
        self._kept: deque[bytes] = deque()
        """What is not acknowledged, as in a spool."""
        self._sent = self._acknowledged = 0
        self.quiet_s = 0.0
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def restart(self) -> None:
        """Break the stream, connect again, and send what was not received."""
        self._call.cancel()
        self._call = self._connect()
        await self.hello()
        for data in list(self._kept):
            await self._call.write(data)

    async def hello(self) -> None:
        """Connect; what the aggregator has is not kept."""
        hello = Hello(
            agent_id=f"agent-{self._number}",
            node=f"node{self._number:05d}",
            perfd_version="bench",
            sent_unix_ns=time.time_ns(),
            first_sequence=self._acknowledged + 1,
            acknowledge_every=self._every,
        )
        await self._call.write(encode_message(hello))
        welcome = decode_aggregator_message(await self._call.read())
        assert isinstance(welcome, Welcome)
        self._note(max(welcome.last_sequence, welcome.received_sequence))
        self.quiet_s = 0.0
        self._reading = asyncio.create_task(self._read(self._call))

    async def send(self, batches: list[bytes]) -> None:
        """Send batches, at most a window ahead of what is acknowledged; until all are, if each is at once."""
        for data in batches:
            await self._acknowledge(self._sent + 1 - _WINDOW)
            self._kept.append(data)
            self._sent += 1
            await self._call.write(data)
        if not self._every:
            await self.settle()

    async def settle(self) -> None:
        """Wait until all is acknowledged."""
        await self._acknowledge(self._sent)

    async def _acknowledge(self, sequence: int) -> None:
        while self._acknowledged < sequence:
            self._changed.clear()
            if self._reading is None or self._reading.done():
                raise RuntimeError("The aggregator ended the stream of an agent.")
            await self._changed.wait()

    async def _read(self, call: Any) -> None:  # noqa: ANN401  (of a package without types)
        """Read what the aggregator says until the stream ends."""
        try:
            while isinstance(data := await call.read(), bytes):
                message = decode_aggregator_message(data)
                if isinstance(message, Ack):
                    self._note(message.sequence)
                elif isinstance(message, BatchInterval):
                    self.quiet_s = message.quiet_s
                self._changed.set()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            # It was restarted, or the aggregator is gone.
            pass
        finally:
            asyncio.get_running_loop().call_soon(self._changed.set)

    def _note(self, sequence: int) -> None:
        while self._acknowledged < sequence:
            self._kept.popleft()
            self._acknowledged += 1


class FakeNatsAgent:
    """An agent that publishes to JetStream; the stream acknowledges its batches."""

    quiet_s = 0.0
    """It listens to nothing."""

    def __init__(self, client: Any, number: int) -> None:  # noqa: ANN401  (of a package that is an extra)
        self._client = client
        node = f"node{number:05d}"
        self._subject = subjects.from_agent("default", None, node)
        self._sender = Hello(
            agent_id=f"agent-{number}",
            node=node,
            perfd_version="bench",
            sent_unix_ns=time.time_ns(),
            first_sequence=1,
        )
        self._session = secrets.token_hex(16)
        self._sequence = 0

    async def send(self, batches: list[bytes]) -> None:
        """Publish batches, with at most one window unacknowledged, and wait until all are acknowledged."""
        js = self._client.jetstream(timeout=60)
        sender = encode_sender(self._sender, self._session)
        for first in range(0, len(batches), _WINDOW):
            window = batches[first : first + _WINDOW]
            numbers = range(self._sequence + 1, self._sequence + 1 + len(window))
            await asyncio.gather(
                *(
                    js.publish(
                        self._subject,
                        data + sender,
                        headers={"Nats-Msg-Id": f"{self._sender.agent_id}.{number}"},
                    )
                    for number, data in zip(numbers, window, strict=True)
                )
            )
            self._sequence += len(window)

    async def restart(self) -> None:
        """Go on in another session."""
        self._session = secrets.token_hex(16)

    async def settle(self) -> None:
        """Nothing to do: what was sent is acknowledged."""


@asynccontextmanager
async def published(
    server: str, nodes: int, jobs: int, connections: int = _CHANNELS
) -> AsyncIterator[list[FakeNatsAgent]]:
    """As `connected`, over NATS; the aggregator has created the stream."""
    import nats  # noqa: PLC0415  (an extra)

    clients = [await nats.connect(server) for _ in range(connections)]
    agents = [FakeNatsAgent(clients[number % connections], number) for number in range(nodes)]
    firsts = [encode_message(first_batch(number, jobs, nodes)) for number in range(nodes)]
    await asyncio.gather(*(agent.send([data]) for agent, data in zip(agents, firsts, strict=True)))
    try:
        yield agents
    finally:
        for client in clients:
            await client.close()


@asynccontextmanager
async def connected(
    aggregator: AggregatorProcess,
    nodes: int,
    jobs: int,
    channels: int = _CHANNELS,
    *,
    acknowledge_every: int = 0,
) -> AsyncIterator[list[FakeAgent]]:
    """Agents, one a node, that have said which GPUs and ranks are there, over so many connections.

    With 0 each batch is acknowledged at once, and `send` waits for that.
    """
    options = [("grpc.use_local_subchannel_pool", 1), *CLIENT_OPTIONS]
    credentials = aggregator.credentials
    opened = [
        grpc.aio.insecure_channel(aggregator.grpc, options=options)
        if credentials is None
        else grpc.aio.secure_channel(aggregator.grpc, credentials, options=options)
        for _ in range(channels)
    ]
    agents: list[FakeAgent] = []
    for first in range(0, nodes, _CONNECT_AT_ONCE):
        numbers = range(first, min(first + _CONNECT_AT_ONCE, nodes))
        new = [FakeAgent(opened[n % channels], n, acknowledge_every=acknowledge_every) for n in numbers]
        await asyncio.gather(*(agent.hello() for agent in new))
        agents += new
    firsts = [encode_message(first_batch(number, jobs, nodes)) for number in range(nodes)]
    await asyncio.gather(*(agent.send([data]) for agent, data in zip(agents, firsts, strict=True)))
    try:
        yield agents
    finally:
        for channel in opened:
            await channel.close()


def first_batch(number: int, jobs: int, nodes: int) -> Batch:
    """What an agent sends of its node at the start."""
    job = f"job{number % jobs}"
    ranks = GPUS * nodes // jobs
    layout = ParallelLayout(world_size=ranks, tp=8, pp=1, dp=max(1, ranks // 8))
    records: list[Record] = [
        *(GpuInfo(index=gpu, name="NVIDIA H200", memory_bytes=141 << 30) for gpu in range(GPUS)),
        *(
            RankPlacement(job=job, rank=number // jobs * GPUS + gpu, gpu=gpu, world_size=ranks)
            for gpu in range(GPUS)
        ),
        JobDescription(job=job, framework="megatron-lm", parallel=layout),
    ]
    return Batch(sequence=1, sent_unix_ns=time.time_ns(), records=records)


def kind_of(node: int, jobs: int) -> int:
    """The job whose progress a node reports, -1 for none."""
    return node if node < jobs else -1


def batch(sequence: int, jobs: int, kind: int, now_ns: int) -> bytes:
    """What an agent sends each second, encoded; it is the same for all nodes of a kind."""
    records = batch_records(sequence, jobs, kind, now_ns)
    return encode_message(Batch(sequence=sequence, sent_unix_ns=now_ns, records=records))


def batch_records(sequence: int, jobs: int, kind: int, now_ns: int) -> list[Record]:
    """The same as records."""
    records: list[Record] = [
        SampleTable(
            scope=Scope.GPU,
            times_unix_ns=[now_ns] * GPUS,
            entities=[str(gpu) for gpu in range(GPUS)],
            columns={name: [_reading(name, gpu) for gpu in range(GPUS)] for name in _GPU_COLUMNS},
        ),
        SampleTable(
            scope=Scope.NODE,
            times_unix_ns=[now_ns],
            entities=[""],
            columns={name: [float(sequence)] for name in _NODE_COLUMNS},
        ),
        *(
            CollectorHealth(collector=name, time_unix_ns=now_ns, duration_s=0.01, success=True)
            for place, name in enumerate(("nvml", "host", "ranks", "training_log"))
            if (sequence + place) % _HEALTH_EVERY == 0
        ),
    ]
    if 0 <= kind < jobs:
        records.append(
            TrainingStep(
                job=f"job{kind}", step=sequence, time_unix_ns=now_ns, step_time_s=1.0, tokens_per_s=1e6
            )
        )
    return records


def _reading(column: str, gpu: int) -> float:
    """What a healthy, busy GPU shows, so that no alert fires."""
    for ending, value in (
        ("active_ratio", 0.9),
        ("ratio", 0.6),
        ("power_w", 600.0),
        ("limit_w", 700.0),
        ("celsius", 60.0),
        ("sm_clock_hz", 1.98e9),
        ("memory_clock_hz", 3.2e9),
        ("total_bytes", 1.5e11),
        ("used_bytes", 8e10),
        ("bytes_per_s", 1e10),
        ("energy_j", 1e6),
    ):
        if column.endswith(ending):
            return value * (1 + 0.001 * gpu)
    return 0.0
