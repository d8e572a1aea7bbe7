"""Viewers are told of rounds as they come, and no number of them can take the server away from others."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Iterator

import pytest

from perfd.net.http import HttpServer, Request, Response
from perfd.web.live_updates import Live

REQUEST = Request(method="GET", path="/events", rest="", query={})


@pytest.fixture
def live() -> Iterator[Live]:
    live = Live(viewers=3, heartbeat_s=0.05)
    yield live
    live.close()


@pytest.fixture
def server(live: Live) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", {"/events": live.connect, "/other": lambda _: Response(body=b"{}")})
    yield server
    live.close()
    server.close()


def connect(server: HttpServer) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.address, timeout=30)
    connection.request("GET", "/events")
    return connection, connection.getresponse()


def next_round(answer: http.client.HTTPResponse) -> int:
    """The number of the next event, after any heartbeats."""
    while not (line := answer.readline()).startswith(b"data: "):
        assert line
    event = json.loads(line.removeprefix(b"data: "))
    assert event["schema"] == "perfd.events/1"
    return int(event["round"])


def until_viewers(live: Live, server: HttpServer, count: int) -> None:
    """Wait for the heartbeat that finds out who left."""
    while live.viewers != count:
        with urllib.request.urlopen(f"http://{server.address}/other", timeout=30):
            pass


def test_a_viewer_gets_an_update_at_once_and_in_each_round(live: Live, server: HttpServer) -> None:
    connection, answer = connect(server)

    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert next_round(answer) == 0
    live.notify()
    assert next_round(answer) == 1
    live.notify()
    assert next_round(answer) == 2
    connection.close()


def test_a_viewer_that_was_busy_gets_the_newest_round_only(live: Live) -> None:
    answer = live.connect(REQUEST)
    assert answer.stream is not None
    pieces = iter(answer.stream)
    # How soon to reconnect, and the round that was over at the begin.
    next(pieces)
    assert b"id: 0\n" in next(pieces)
    for _ in range(1000):
        live.notify()

    assert b"id: 1000\n" in next(pieces)
    answer.stream.close()


def test_a_round_that_ends_before_the_stream_is_read_is_an_event_of_its_own(live: Live) -> None:
    answer = live.connect(REQUEST)
    assert answer.stream is not None
    live.notify()
    pieces = iter(answer.stream)

    events = [next(pieces) for _ in range(3)]

    # A page takes the first round for that of the numbers which it has.
    assert [b"id: 0\n" in event for event in events] == [False, True, False]
    assert b"id: 1\n" in events[2]
    answer.stream.close()


def test_viewers_beyond_the_bound_are_refused_and_other_requests_are_answered(
    live: Live, server: HttpServer
) -> None:
    streams = [connect(server) for _ in range(3)]
    refused = [connect(server) for _ in range(20)]

    assert {answer.status for _, answer in streams} == {200}
    assert {answer.status for _, answer in refused} == {503}
    assert "poll every few seconds" in json.loads(refused[0][1].read())["error"]
    with urllib.request.urlopen(f"http://{server.address}/other", timeout=30) as answer:
        assert answer.status == 200
    for connection, response in [*streams, *refused]:
        response.close()
        connection.close()


def test_a_viewer_that_leaves_makes_room_for_another(live: Live, server: HttpServer) -> None:
    for connection, answer in [connect(server) for _ in range(3)]:
        answer.close()
        connection.close()
    until_viewers(live, server, 0)
    connection, answer = connect(server)

    assert answer.status == 200
    connection.close()


def test_the_end_of_the_aggregator_ends_the_streams(live: Live, server: HttpServer) -> None:
    connection, answer = connect(server)
    next_round(answer)
    live.close()

    assert b"data" not in answer.read()
    connection.close()
    connection, answer = connect(server)
    assert answer.status == 503
    connection.close()
