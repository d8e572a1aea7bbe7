"""Agents over gRPC through a gateway and real NATS servers to an aggregator."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from jetstream.support import WAIT_S, aggregator, stored_steps, until

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool.spool import Spool
from perfd.agent.uplink import GrpcUplink, unstored_batches
from perfd.aggregator import Aggregator
from perfd.clock import SystemClock
from perfd.config import GatewayConfig, NatsGatewayConfig, UplinkConfig
from perfd.gateway import Gateway
from perfd.model import (
    BatchInterval,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    Hello,
    Record,
    TrainingStep,
    Welcome,
)
from perfd.wire import convert
from perfd.wire.service import CONNECT_METHOD
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system
LARGE = "max_payload: 17000000"


class GrpcNode:
    """A spool, what fills it and an uplink over gRPC."""

    def __init__(self, folder: Path, address: str, node: str = "n0", **options: Any) -> None:
        self.spool = Spool(folder, max_bytes=1 << 30)
        self._batcher = Batcher(self.spool)
        self.requests: list[Any] = []
        self.job = f"job-{node}"
        self.uplink = GrpcUplink(
            UplinkConfig(address=address, backoff_initial_s=0.1, backoff_max_s=0.5, **options),
            node=node,
            spool=self.spool,
            clock=SystemClock(),
            on_request=self.requests.append,
        )

    def produce(self, count: int = 1, *more: Record) -> int:
        for _ in range(count):
            step = self.spool.last_sequence + 1
            self._batcher.add([*more, TrainingStep(job=self.job, step=step)])
            self._batcher.flush(time.time_ns())
        self.uplink.notify()
        return self.spool.last_sequence

    def close(self) -> None:
        self.uplink.stop(0.0)
        self.spool.close()


@contextlib.contextmanager
def streaming(folder: Path, gateway: Gateway, node: str = "n0") -> Iterator[GrpcNode]:
    one = GrpcNode(folder, gateway.grpc_address, node)
    one.uplink.start()
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def a_gateway(server: NatsServer, **nats: Any) -> Iterator[Gateway]:
    running = Gateway(
        GatewayConfig(
            listen="127.0.0.1:0",
            http_listen="127.0.0.1:0",
            nats=NatsGatewayConfig(servers=[server.address], **nats),
        )
    )
    running.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path, more=LARGE) as running:
        yield running


def page(gateway: Gateway, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{gateway.http_address}{path}", timeout=10.0) as response:
        return str(response.read().decode())


def connected(running: Aggregator) -> int:
    return running.state.agents.connected()


def test_what_agents_stream_is_stored_and_leaves_their_spools(tmp_path: Path, server: NatsServer) -> None:
    history = tmp_path / "history.sqlite"
    with (
        aggregator(history, server.address) as running,
        a_gateway(server) as gateway,
        streaming(tmp_path / "a", gateway, "n0") as first,
        streaming(tmp_path / "b", gateway, "n1") as second,
    ):
        for node in (first, second):
            last = node.produce(100)
            assert node.uplink.wait_acknowledged(last, WAIT_S)
            assert node.spool.stats().batches == 0
            wanted = list(range(1, last + 1))
            assert until(lambda job=node.job, steps=wanted: stored_steps(history, job) == steps)
        assert running.state.counters.lost_batches == 0
        assert "perfd_gateway_agents 2.0" in page(gateway)
        assert "perfd_gateway_batches_total 200.0" in page(gateway)
        assert page(gateway, "/readyz") == "ok\n"


def test_nothing_is_acknowledged_before_the_stream_has_it(tmp_path: Path, server: NatsServer) -> None:
    history = tmp_path / "history.sqlite"
    with a_gateway(server) as gateway, streaming(tmp_path / "spool", gateway) as agent:
        # No aggregator has created the stream.
        last = agent.produce(20)
        assert not agent.uplink.wait_acknowledged(1, 1.0)
        assert agent.spool.stats().batches == last
        with aggregator(history, server.address):
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))


def test_kills_of_gateway_and_server_lose_and_repeat_nothing(tmp_path: Path, server: NatsServer) -> None:
    history = tmp_path / "history.sqlite"
    with aggregator(history, server.address) as running:
        assert until(lambda: running._nats is not None and running._nats.progress.reading)
        with a_gateway(server) as gateway, streaming(tmp_path / "spool", gateway) as agent:
            agent.produce(50)
            server.kill()
            agent.produce(50)
            server.start()
            last = agent.produce(50)
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
            gateway.stop()
            last = agent.produce(50)
        with a_gateway(server) as gateway, streaming(tmp_path / "spool", gateway) as agent:
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
        assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
        assert running.state.counters.lost_batches == 0


def test_batches_that_the_stream_lost_are_sent_again_by_the_agent(
    tmp_path: Path, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_AGAIN_AFTER_S", "_NEWEST_AGAIN_AFTER_S", "_OTHERS_AGAIN_AFTER_S"):
        monkeypatch.setattr(unstored_batches, name, getattr(unstored_batches, name) / 30)

    async def messages(js: Any) -> int:
        return int((await js.stream_info("perfd")).state.messages)

    async def purge(js: Any) -> None:
        await js.purge_stream("perfd")

    history = tmp_path / "history.sqlite"
    with aggregator(history, server.address) as running:
        assert until(lambda: running._nats is not None and running._nats.progress.reading)
    with a_gateway(server) as gateway, streaming(tmp_path / "spool", gateway) as agent:
        first = agent.produce(20)
        assert until(lambda: server.ask(messages) >= first)
        # What only the stream has stays in the spool.
        assert not agent.uplink.wait_acknowledged(1, 1.0)
        server.ask(purge)
        with aggregator(history, server.address):
            last = agent.produce(5)
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
            assert until(lambda: agent.spool.stats().batches == 0)


def test_a_capture_is_requested_and_reported_through_the_gateway(tmp_path: Path, server: NatsServer) -> None:
    with (
        aggregator(None, server.address) as running,
        a_gateway(server) as gateway,
        streaming(tmp_path / "spool", gateway) as agent,
    ):
        assert agent.uplink.wait_acknowledged(agent.produce(), WAIT_S)
        assert until(lambda: connected(running) == 1)
        statuses: list[CaptureStatus] = []
        running._captures.capture_status = lambda _node, status: statuses.append(status)
        request = CaptureRequest(
            capture_id="c1", job=agent.job, tool=CaptureTool.NSYS, ranks=(0,), max_duration_s=1.0
        )
        assert until(lambda: running.send("n0", request) or agent.requests)
        assert agent.requests[0].capture_id == "c1"
        status = CaptureStatus(capture_id="c1", state=CaptureState.REFUSED, time_unix_ns=1, reason="no")
        agent.uplink.send_status(status)
        assert until(lambda: statuses)
        assert statuses[0] == replace(status)


def test_an_interval_that_is_asked_for_holds_until_another_aggregator_reads(
    tmp_path: Path, server: NatsServer
) -> None:
    asked, taken_back = BatchInterval(quiet_s=2.0), BatchInterval(quiet_s=0.0)
    with a_gateway(server) as gateway, streaming(tmp_path / "spool", gateway) as agent:
        with aggregator(None, server.address) as running:
            assert agent.uplink.wait_acknowledged(agent.produce(), WAIT_S)
            assert until(lambda: connected(running) == 1)
            running.send("n0", asked)
            assert until(lambda: agent.requests == [asked])
        with aggregator(None, server.address) as running:
            agent.produce()
            assert until(lambda: connected(running) == 1)
            assert until(lambda: agent.requests == [asked, taken_back])


def test_a_copied_spool_takes_a_new_identity(tmp_path: Path, server: NatsServer) -> None:
    with aggregator(None, server.address) as running, a_gateway(server) as gateway:
        with streaming(tmp_path / "spool", gateway, "n0") as agent:
            assert agent.uplink.wait_acknowledged(agent.produce(3), WAIT_S)
            assert until(lambda: connected(running) == 1)
            identity = agent.spool.agent_id
        hello = Hello(
            agent_id=identity, node="n1", perfd_version="0", sent_unix_ns=1, first_sequence=1, spool_epoch="x"
        )
        with grpc.insecure_channel(gateway.grpc_address) as channel:
            connect = channel.stream_stream(CONNECT_METHOD)  # type: ignore[call-arg]
            answers: Any = connect(iter([convert.encode_message(hello)]), timeout=30.0)
            welcome = convert.decode_aggregator_message(next(answers))
        assert isinstance(welcome, Welcome)
        assert welcome.renew_identity


def test_servers_that_take_no_large_message_are_refused(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server, a_gateway(server) as gateway:
        assert until(lambda: "perfd_gateway_nats_connected 1.0" in page(gateway))
        with streaming(tmp_path / "spool", gateway) as agent:
            agent.produce()
            assert not agent.uplink.wait_acknowledged(1, 1.0)
