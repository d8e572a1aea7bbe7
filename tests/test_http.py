"""The small HTTP server answers whatever happens."""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from perfd.errors import PerfdError
from perfd.net.http import HttpServer, Request, Response


@pytest.fixture
def server() -> Iterator[HttpServer]:
    def fail(request: Request) -> Response:
        raise RuntimeError(request.path)

    def echo(request: Request) -> Response:
        return Response(body=json.dumps([request.method, request.rest, dict(request.query)]).encode())

    def named(request: Request) -> Response:
        return Response(body=b"{}", headers={"Content-Disposition": request.query["name"]})

    server = HttpServer("127.0.0.1:0", {"/fail": fail, "/tree/": echo, "/wild": named})
    yield server
    server.close()


def get(server: HttpServer, path: str) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_route_with_a_slash_takes_what_is_below_it(server: HttpServer) -> None:
    assert get(server, "/tree/a/b?x=1&x=2") == (200, ["GET", "a/b", {"x": "2"}])


def test_a_name_in_a_header_does_not_end_it(server: HttpServer) -> None:
    """As that of a capture in a saved page of someone else."""
    url = f"http://{server.address}/wild?name=a%0D%0AX-Own%3A%201%0D%0A%0D%0A%E2%82%AC%3Csvg%3E"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Disposition"] == "a??X-Own: 1?????<svg>"
        assert "X-Own" not in answer.headers
        assert answer.read() == b"{}"


def test_an_unknown_path_says_what_there_is(server: HttpServer) -> None:
    status, body = get(server, '/"nothing')

    assert status == 404
    assert "/fail, /tree/" in str(body)


def test_a_handler_that_fails_gives_an_answer_and_the_next_request_works(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert get(server, "/fail")[0] == 500
    assert "A request failed." in caplog.text
    assert get(server, "/tree/")[0] == 200


def test_a_body_that_is_too_large_is_refused(server: HttpServer) -> None:
    request = urllib.request.Request(f"http://{server.address}/tree/", data=b"x", method="POST")
    request.add_unredirected_header("Content-Length", "999999999")

    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    with error.value:
        assert error.value.code == 413


def test_a_port_in_use_is_one_sentence(server: HttpServer) -> None:
    with pytest.raises(PerfdError, match=r"Cannot listen on .* Choose another address"):
        HttpServer(server.address, {})


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:99999", ":-1"])
def test_what_is_no_address_is_said_so(address: str) -> None:
    with pytest.raises(PerfdError, match="is not an address; write it as host:port"):
        HttpServer(address, {})


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 200), ("http://{address}", 200), ("https://evil.example", 403), ("null", 403), ("[", 403)],
)
def test_a_page_of_another_site_cannot_make_a_browser_post_here(
    server: HttpServer, origin: str | None, status: int
) -> None:
    headers = {} if origin is None else {"Origin": origin.format(address=server.address)}
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request("POST", "/tree/", body=b"{}", headers=headers)

    assert connection.getresponse().status == status
    connection.close()


class Endless:
    """A stream that is never over, and notes that it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield b"x" * 65_536

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("leaves", [False, True], ids=["reads nothing", "goes away"])
def test_a_client_that_does_not_take_a_stream_is_dropped(leaves: bool) -> None:
    stream = Endless()
    server = HttpServer("127.0.0.1:0", {"/stream": lambda _: Response(stream=stream)}, stalled_s=0.2)
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: here\r\n\r\n")
        assert client.recv(1)
        if leaves:
            client.close()
        assert stream.closed.wait(50)
    server.close()


def test_a_client_that_breaks_off_between_requests_is_not_worth_a_word(
    server: HttpServer, capfd: pytest.CaptureFixture[str]
) -> None:
    host, port = server.address.rsplit(":", 1)
    before = threading.active_count()
    client = socket.create_connection((host, int(port)))
    client.sendall(b"GET /tree/ HTTP/1.1\r\nHost: here\r\n\r\n")
    assert client.recv(1)
    # Closed with data unread and no time to linger: the peer gets a reset.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    while threading.active_count() > before:
        assert get(server, "/tree/")[0] == 200

    assert capfd.readouterr().err == ""


def test_a_stream_ends_its_connection_when_it_is_over() -> None:
    class Short(Endless):
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"a", b"b"])

    stream = Short()
    server = HttpServer(
        "127.0.0.1:0", {"/stream": lambda _: Response(stream=stream, content_type="text/plain")}
    )
    with urllib.request.urlopen(f"http://{server.address}/stream", timeout=10) as answer:
        assert (answer.read(), answer.headers["Connection"]) == (b"ab", "close")
    assert stream.closed.wait(50)
    server.close()


def talk(server: HttpServer, sent: bytes) -> socket.socket:
    """A connection on which this was sent."""
    host, port = server.address.rsplit(":", 1)
    client = socket.create_connection((host, int(port)), timeout=50)
    client.sendall(sent)
    return client


def to_its_end(client: socket.socket) -> bytes:
    """What the server sends until it closes or cuts off."""
    received = b""
    try:
        while piece := client.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    client.close()
    return received


def ended(client: socket.socket, drop: bytes) -> bool:
    """Whether the server has closed a connection, on which a drop more is sent."""
    try:
        client.sendall(drop)
        return client.recv(65_536) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b""),
        (b"", b"G"),
        (b"GET /tree/ HTTP/1.1\r\n", b"X: y\r\n"),
        (b"POST /tree/ HTTP/1.1\r\nHost: here\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"POST /tree/ HTTP/1.1\r\nHost: here\r\nContent-Length: 99999999\r\n\r\n", b"x"),
    ],
    ids=["nothing", "the request line", "headers", "the body", "a body that is too large"],
)
def test_a_request_that_comes_too_slowly_does_not_keep_a_thread(first: bytes, drop: bytes) -> None:
    idle_s = 1e6 if first or drop else 0.3
    server = HttpServer("127.0.0.1:0", {"/tree/": lambda _: Response()}, idle_s=idle_s, request_s=0.3)
    client = talk(server, first)
    client.settimeout(0.02)
    while not ended(client, drop):
        pass
    client.close()
    server.close()


def test_a_client_that_thinks_between_requests_has_time_for_each() -> None:
    server = HttpServer("127.0.0.1:0", {"/tree/": lambda _: Response(body=b"x")}, idle_s=50.0, request_s=0.2)
    connection = http.client.HTTPConnection(server.address, timeout=50)
    for _ in range(3):
        # A kept connection rests for longer than one request may take.
        threading.Event().wait(0.3)
        connection.request("GET", "/tree/")
        assert connection.getresponse().read() == b"x"
    connection.close()
    server.close()


def test_connections_beyond_the_bound_are_refused_while_all_others_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, go_on = threading.Semaphore(0), threading.Event()

    def slow(_: Request) -> Response:
        asked.release()
        go_on.wait()
        return Response(body=b"late")

    server = HttpServer("127.0.0.1:0", {"/slow": slow}, connections=2, slow_s=0.0)
    kept = [talk(server, b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n") for _ in range(2)]
    for _ in kept:
        assert asked.acquire(timeout=50)
    for _ in range(3):
        head, _, body = to_its_end(talk(server, b"")).partition(b"\r\n\r\n")
        assert b" 503 " in head
        assert b"Too many connections" in json.loads(body)["error"].encode()
    assert caplog.text.count("Too many HTTP connections") == 1
    go_on.set()
    assert all(to_its_end(client).endswith(b"late") for client in kept)
    status = 503
    while status == 503:
        answer = to_its_end(talk(server, b"GET /slow HTTP/1.0\r\n\r\n"))
        status = int(answer.split()[1]) if answer else 503
    assert status == 200
    server.close()


def test_a_server_that_nobody_connects_to_waits_without_a_limit_and_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []
    waiting = threading.Event()

    class Selector(selectors.PollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            waits.append(timeout)
            waiting.set()
            return super().select(timeout)

    monkeypatch.setattr("socketserver._ServerSelector", Selector)
    server = HttpServer("127.0.0.1:0", {})
    assert waiting.wait(50)
    server.close()
    server.close()
    assert waits == [None]


def test_the_end_of_the_server_ends_idle_connections_and_answers_what_is_under_way() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(_: Request) -> Response:
        asked.set()
        go_on.wait()
        return Response(body=b"late")

    server = HttpServer("127.0.0.1:0", {"/slow": slow}, idle_s=1e6)
    idle, waiting = talk(server, b""), talk(server, b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n")
    assert asked.wait(50)
    server.close()
    go_on.set()
    assert to_its_end(waiting).endswith(b"late")
    assert to_its_end(idle) == b""
