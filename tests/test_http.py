"""The small HTTP server answers whatever happens."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from perfd.errors import PerfdError
from perfd.http import HttpServer, Request, Response


@pytest.fixture
def server() -> Iterator[HttpServer]:
    def fail(request: Request) -> Response:
        raise RuntimeError(request.path)

    def echo(request: Request) -> Response:
        return Response(body=json.dumps([request.method, request.rest, dict(request.query)]).encode())

    server = HttpServer("127.0.0.1:0", {"/fail": fail, "/tree/": echo})
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
