"""The end of an aggregator: whatever is connected, and whatever hangs, it comes."""

import contextlib
import socket
import threading

import grpc
import pytest
from aggregator.support import START_S, aggregator, step
from exporters.support import until

from perfd.aggregator import Aggregator
from perfd.config import AggregatorConfig, HistoryConfig, RulesConfig
from perfd.wire.service import CONNECT_METHOD
from tests.support.fake_agent import FakeAgent


def connected(running, request):
    """A client of the HTTP server that has sent this."""
    host, port = running.http_address.split(":")
    client = socket.create_connection((host, int(port)), timeout=50)
    client.sendall(request)
    return client


def to_its_end(client):
    """What a server sends until it closes."""
    with client:
        return b"".join(iter(lambda: client.recv(65_536), b""))


def up_to(client, words):
    """Wait until a server has said this."""
    said = b""
    while words not in said:
        said += client.recv(65_536)


@pytest.fixture
def threads():
    """Names of perfd's threads that began in the test; others may be of a fixture of the session."""
    before = {thread.ident for thread in threading.enumerate()}

    def of_this_test():
        now = [thread for thread in threading.enumerate() if thread.ident not in before]
        return {thread.name for thread in now if thread.name.startswith("perfd-")}

    return of_this_test


@contextlib.contextmanager
def silent_stream(running):
    """A stream that was opened and never said who it is."""
    with grpc.insecure_channel(running.grpc_address) as channel:
        over = threading.Event()
        call = channel.stream_stream(CONNECT_METHOD)(iter(over.wait, True))
        try:
            yield call
        finally:
            over.set()


def test_viewers_idle_connections_and_agents_do_not_hold_up_the_end(threads):
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(aggregator(http_listen="127.0.0.1:0"))
        agent = stack.enter_context(FakeAgent(running.grpc_address))
        agent.hello()
        agent.send(step(1, time_s=START_S))
        stack.enter_context(silent_stream(running))
        viewers = [
            connected(running, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)
        ]
        idle = connected(running, b"GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        half = connected(running, b"POST /api/v1/captures HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        for viewer in viewers:
            # Each is told of the round that is over, unless the end comes first.
            up_to(viewer, b"event: round")
        assert idle.recv(15) == b"HTTP/1.1 200 OK"
        running.stop()
        for viewer in viewers:
            to_its_end(viewer)
        assert to_its_end(idle).endswith(b"ok\n")
        half.close()
        assert not {"perfd-ingest", "perfd-http", "perfd-rounds"} & threads()


def test_a_disk_that_hangs_does_not_keep_the_aggregator(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("perfd.aggregator.aggregator._STOP_WITHIN_S", 0.0)
    monkeypatch.setattr("perfd.aggregator.aggregator._LAST_GRACE_S", 0.1)
    disk = threading.Event()
    with aggregator(history=HistoryConfig(path=str(tmp_path / "h.sqlite"))) as running:
        running._history.submit([], done=disk.wait)
        running.stop()
    assert "History was not stored in time" in caplog.text
    disk.set()
    assert running._history.close()


def test_a_stream_handler_that_hangs_does_not_keep_the_aggregator(monkeypatch, caplog, threads):
    monkeypatch.setattr("perfd.aggregator.ingest.ingest_thread._END_WITHIN_S", 0.1)
    loop = threading.Event()
    with aggregator() as running:
        running._server._loop.call_soon_threadsafe(loop.wait)
        running.stop()
    assert "did not end in time" in caplog.text
    loop.set()
    until(lambda: "perfd-ingest" not in threads())


def test_a_round_that_hangs_does_not_keep_the_aggregator(monkeypatch, caplog, threads):
    monkeypatch.setattr("perfd.aggregator.aggregator._ROUND_GRACE_S", 0.1)
    began, over = threading.Event(), threading.Event()

    def hang(_):
        began.set()
        over.wait()

    running = Aggregator(
        AggregatorConfig(
            listen="127.0.0.1:0", http_listen=None, rules=RulesConfig(builtin=False), round_interval_s=0.05
        )
    )
    running.start()
    monkeypatch.setattr(running._rounds, "run", hang)
    assert began.wait(50)
    running.stop()
    assert "A round of analysis did not end in time" in caplog.text
    over.set()
    until(lambda: "perfd-rounds" not in threads())
