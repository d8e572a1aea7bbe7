"""Many streams, connections and large messages of one address at the port for agents."""

import contextlib
import socket

import grpc
import pytest
from aggregator.support import aggregator, step

from perfd.aggregator.ingest.address_shares import AddressShares, address_of
from perfd.aggregator.limits import Limits
from perfd.model import Event, EventKind
from perfd.net import split_address
from tests.support.fake_agent import FakeAgent

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The start of HTTP/2 with empty settings, after which gRPC waits for streams."""


def rejected(running, bound):
    with running.state.lock:
        return running.state.counters.rejected[bound]


def test_one_address_has_three_quarters_at_most_and_gives_back_what_it_had():
    room = AddressShares(8)
    with room.hold("a", 6) as six, room.hold("a") as seven, room.hold("b", 2) as two, room.hold("c") as one:
        assert (six, seven, two, one) == (True, False, True, False)
        assert len(room) == 8
    assert len(room) == 0
    with contextlib.suppress(ValueError), room.hold("a", 6):
        raise ValueError
    with room.hold("a", 7) as seven, room.hold("a", 6) as six:
        assert (seven, six) == (False, True)


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.7:4711", "ipv4:10.0.0.7"), ("ipv6:%5B::1%5D:4711", "ipv6:%5B::1%5D"), ("unix", "unix")],
)
def test_the_clients_of_one_address_have_one_name(peer, address):
    assert address_of(peer) == address


def test_streams_without_a_hello_do_not_block_agents_for_good(caplog):
    limits = Limits(streams_without_hello=4)
    with aggregator(limits=limits) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        with contextlib.ExitStack() as silent:
            streams = [silent.enter_context(FakeAgent(running.grpc_address)) for _ in range(6)]
            refused = next_ended(streams)
            assert refused.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert agent.send(step(1)) == 1
        assert rejected(running, "streams_without_hello") > 0
        assert [r.bound for r in caplog.records if "share of a limit" in r.message] == [
            "streams_without_hello"
        ]
        while True:
            with contextlib.suppress(grpc.RpcError), FakeAgent(running.grpc_address, agent_id="b") as other:
                other.hello()
                break


def next_ended(streams):
    """A stream that the server ended; with three places at least three of six are ended."""
    while True:
        for stream in streams:
            if stream.ended:
                return stream


def test_agents_of_one_address_leave_places_for_those_of_others():
    with aggregator(limits=Limits(agents=8)) as running, contextlib.ExitStack() as open_streams:
        agents = [
            open_streams.enter_context(FakeAgent(running.grpc_address, agent_id=f"a{n}", node=f"n{n}"))
            for n in range(6)
        ]
        for agent in agents:
            agent.hello()
        with FakeAgent(running.grpc_address, agent_id="b", node="b") as beyond:
            with pytest.raises(grpc.RpcError):
                beyond.hello()
            assert beyond.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rejected(running, "agents") == 1
        assert all(agent.send(step(1, job=agent.agent_id)) == 1 for agent in agents)
        assert len(running.state.agents) == 6


def test_a_first_message_of_megabytes_is_not_decoded():
    with aggregator() as running, FakeAgent(running.grpc_address, agent_id="a" * 20_000) as agent:
        with pytest.raises(grpc.RpcError):
            agent.hello()
        assert agent.end() is grpc.StatusCode.INVALID_ARGUMENT
        assert agent.reason == "The first message of a stream is too large for a Hello."


def test_large_messages_of_one_address_leave_room_for_those_of_others():
    event = Event(kind=EventKind.NCCL_WARNING, time_unix_ns=1, message="x" * 60_000, job="llm")
    # Three quarters of it are less than the message.
    with aggregator(limits=Limits(held_message_bytes=70_000)) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            with pytest.raises(grpc.RpcError):
                agent.send(event)
            assert agent.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rejected(running, "held_message_bytes") == 1
        assert len(running._server._held_bytes_of) == 0


@pytest.mark.parametrize("sent", [b"", PREFACE], ids=["no handshake", "no stream"])
def test_a_connection_without_a_stream_is_ended_after_a_while(sent):
    with (
        aggregator(limits=Limits(hello_within_s=0.05)) as running,
        socket.create_connection(split_address(running.grpc_address), 50) as client,
    ):
        client.sendall(sent)
        while client.recv(4096):
            pass


def test_connections_leave_file_descriptors_for_all_else(monkeypatch):
    monkeypatch.setattr("perfd.aggregator.ingest.grpc_server.resource.getrlimit", lambda _: (8, 8))
    with aggregator() as running, contextlib.ExitStack() as silent:
        address = split_address(running.grpc_address)
        for _ in range(4):
            client = silent.enter_context(socket.create_connection(address, 50))
            client.sendall(PREFACE)
            assert client.recv(4096)
        with pytest.raises(grpc.RpcError), FakeAgent(running.grpc_address) as beyond:
            beyond.hello()
