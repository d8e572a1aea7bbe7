"""A small HTTP server for /metrics and the JSON API: threads, loopback unless configured."""

from __future__ import annotations

import io
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec

from perfd.errors import PerfdError
from perfd.net.connection_limits import BoundedServer, RequestReader
from perfd.net.content_encoding import encode_body
from perfd.net.tls import ServerTls

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 1024 * 1024
"""Largest request body, which is held in memory as a whole."""
_MOST_DIGITS = 20
"""More than any length has; it bounds the conversion of a hostile header."""
_DISCARDED_BYTES = 16 * MAX_BODY_BYTES
"""Read of a body that is too large, so that its client can read the answer. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; `path` is without the query and without the route's prefix kept apart in `rest`."""

    method: str
    path: str
    rest: str
    query: Mapping[str, str]
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


class StreamingResponse(Protocol):
    """Pieces of an answer that come one by one; `close` is called once, whatever happens."""

    def __iter__(self) -> Iterator[bytes]:
        """The pieces; waiting for the next one blocks the client's own thread only."""

    def close(self) -> None:
        """No reader is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What is sent back: a whole body, or a stream and then the end of the connection."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: StreamingResponse | None = None


Handler = Callable[[Request], Response]


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401  (whatever JSON can hold)
    """A document; what is not a number in it becomes null, which is what JSON has for "not known"."""
    return Response(body=msgspec.json.encode(document) + b"\n", status=status, headers=headers or {})


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Why there is no answer, as `{"error": message}`."""
    return json_response({"error": message}, status, headers)


def text_response(text: str, status: int = 200) -> Response:
    """Plain text."""
    return Response(body=text.encode(), status=status, content_type="text/plain; charset=utf-8")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair; raises `PerfdError` when it is neither."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise PerfdError(
            f"{address!r} is not an address; write it as host:port, for example 127.0.0.1:9460,"
            " with a port up to 65535."
        )
    return host.strip("[]"), int(port)


def require_free(address: str) -> None:
    """Raise `PerfdError` when nothing can listen on `host:port` now."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
            tried.listen()
    except OSError as error:
        raise PerfdError(_cannot_listen(address, error)) from error


def _cannot_listen(address: str, error: OSError) -> str:
    return (
        f"Cannot listen on {address}: {error.strerror or error}. "
        "Choose another address, or stop the process that has it."
    )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpServer:
    """Serves `routes` from threads of its own. A route that ends in `/` also takes what is below it.

    Port 0 picks a free one; `address` is the real one. Raises `PerfdError` when the port is in use.
    A client that takes nothing of a stream for `stalled_s` is dropped, and so is one that vanished.
    Beyond so many `connections` at a time a further one takes the place of one that is idle or slow (for
    `slow_s`), or gets status 503. One on which no request begins for `idle_s` is closed, and so is one whose
    request is not whole `request_s` after its first byte.
    """

    def __init__(
        self,
        address: str,
        routes: Mapping[str, Handler],
        *,
        stalled_s: float = 10.0,
        connections: int = 256,
        idle_s: float = 30.0,
        request_s: float = 15.0,
        slow_s: float = 1.0,
        tls: ServerTls | None = None,
    ) -> None:
        host, port = split_address(address)
        bound = {"routes": dict(routes), "stalled_s": stalled_s, "idle_s": idle_s, "request_s": request_s}
        handler = type("_BoundHandler", (_Handler,), bound)
        try:
            self._server = BoundedServer(
                (host, port), handler, connections, tls=tls, handshake_s=request_s, slow_s=slow_s
            )
        except OSError as error:
            raise PerfdError(_cannot_listen(address, error)) from error
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="perfd-http", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # `serve_forever` would wake ten times a second to see whether it has to end.
        while not self._closing:
            self._server.handle_request()

    @property
    def address(self) -> str:
        """Where the server listens, as `host:port`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop listening; requests that are here are still answered, by threads that end by themselves.

        Legal twice.
        """
        if self._closing:
            return
        self._closing = True
        # Which wakes the thread that waits for a connection.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()
        self._server.read_no_more()


class _Handler(BaseHTTPRequestHandler):
    routes: Mapping[str, Handler] = {}
    protocol_version = "HTTP/1.1"
    timeout = 30
    """For one answer to be taken."""
    disable_nagle_algorithm = True
    """Head and body are two writes: the second would wait until the client acknowledges the first."""
    stalled_s = 10.0
    idle_s = 30.0
    request_s = 15.0
    server: BoundedServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.timeout)
        self.rfile.close()
        self._reader = RequestReader(
            self.connection, self.server, idle_s=self.idle_s, request_s=self.request_s
        )
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.expect()
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError):
            # The client went away or lost its place between two requests: that is not worth a word.
            self.close_connection = True

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # What follows could be taken for the next request, of whomever a proxy sends it for.
            self.close_connection = True
        self._answer(b"")

    def do_POST(self) -> None:
        lengths = self.headers.get_all("Content-Length", ["0"])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1:
            self.close_connection = True
            self._send(error_response(411, "Send the body with one Content-Length, and not in chunks."))
            return
        length = lengths[0]
        if not _is_number(length) or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self._send(
                error_response(413, f"The body must say its length and be at most {MAX_BODY_BYTES} bytes.")
            )
            self._discard(length)
            return
        body = self.rfile.read(int(length))
        if self._is_of_another_site():
            self._send(error_response(403, "Requests from pages of other sites are not allowed."))
            return
        self._answer(body)

    def _discard(self, length: str) -> None:
        """Read some of a body that is too large: a client that is cut off while it writes sees no answer."""
        left = min(int(length), _DISCARDED_BYTES) if _is_number(length) else 0
        while left > 0 and (chunk := self.rfile.read(min(left, 65536))):
            left -= len(chunk)

    def _is_of_another_site(self) -> bool:
        """Whether a browser sends this for a page of another site; browsers always send Origin."""
        origin = self.headers.get("Origin")
        return origin is not None and origin.partition("://")[2] != self.headers.get("Host")

    def _answer(self, body: bytes) -> None:
        self.server.answers(self.connection)
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._send(error_response(400, "The address of the request is not one."))
            return
        handler, rest = route_of(self.routes, url.path)
        if handler is None:
            self._send(
                error_response(404, f"There is nothing at {url.path}; try {', '.join(sorted(self.routes))}.")
            )
            return
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(
            method=self.command, path=url.path, rest=rest, query=query, body=body, headers=headers
        )
        try:
            response = handler(request)
        except Exception:  # Whatever a handler raises, its client gets an answer.
            log.exception("A request failed.", extra={"path": url.path})
            response = error_response(500, f"perfd failed to answer {url.path}; its log says why.")
        if response.stream is None:
            sent = encode_body(
                response.body, response.status, response.content_type, response.headers, headers
            )
            response = replace(
                response, body=sent.body, status=sent.status, headers={**response.headers, **sent.headers}
            )
        self._send(response)

    def _send(self, response: Response) -> None:
        self.connection.settimeout(self.timeout)
        try:
            if response.stream is None:
                self.server.waits(self.connection, idle=False)
                self._send_head(response)
                self.wfile.write(response.body)
            else:
                self._send_head(response)
                self._send_stream(response.stream)
        except OSError:
            # It went away, or does not read: neither is that.
            self.close_connection = True
        finally:
            if response.stream is not None:
                response.stream.close()

    def _send_stream(self, stream: StreamingResponse) -> None:
        self.connection.settimeout(self.stalled_s)
        vanished_ms = round(self.stalled_s * 1000)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, vanished_ms)
        for piece in stream:
            self.wfile.write(piece)

    def _send_head(self, response: Response) -> None:
        self.send_response(response.status)
        if response.status != 304:
            self.send_header("Content-Type", response.content_type)
        if response.stream is None:
            # Of a 304 it would be the length of what is not sent.
            if response.status != 304:
                self.send_header("Content-Length", str(len(response.body)))
        else:
            # Also makes the server end the connection after the last piece.
            self.send_header("Connection", "close")
        if self.close_connection and response.stream is None:
            self.send_header("Connection", "close")
        for name, value in response.headers.items():
            self.send_header(name, _header_text(value))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name is http.server's)
        """Requests are counted by whoever scrapes; they are not logged."""


def route_of(routes: Mapping[str, Handler], path: str) -> tuple[Handler | None, str]:
    """The handler of a path, None without one, and the rest of the path below a route that ends in `/`."""
    if path in routes:
        return routes[path], ""
    prefixes = [route for route in routes if route.endswith("/") and path.startswith(route) and route != "/"]
    if not prefixes:
        return None, ""
    longest = max(prefixes, key=len)
    return routes[longest], path[len(longest) :]


def _header_text(value: str) -> str:
    """The value of a header: a name in it, from a job or a file, must not end the header."""
    return "".join(char if " " <= char <= "~" else "?" for char in value)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS
