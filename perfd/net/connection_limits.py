"""How many connections an HTTP server has at a time, and for how long each may keep its thread waiting."""

from __future__ import annotations

import errno
import logging
import resource
import select
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from perfd.net.deadline import DeadlineReader
from perfd.net.tls import ServerTls

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger(__name__)
_FULL = b'{"error": "Too many connections are open: try again."}\n'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%b" % (len(_FULL), _FULL)
)


_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_WITHOUT_DESCRIPTORS_S = 0.1
"""Until the next try to take a connection; without it the server's thread would keep a core busy."""


_SLOW_S = 1.0
"""A client that needs longer to send a request or to take its answer may lose its place to a new connection.
On a network that loses no packets both take milliseconds."""


@dataclass(slots=True, eq=False)
class OpenConnection:
    """A connection, and since when the server waits for its client."""

    socket: socket.socket
    peer: str
    """The client's address, without its port."""
    waits_since_s: float | None
    """Of the monotonic clock; None while the server makes an answer or sends a stream."""
    idle: bool = True
    """Nothing of a request has been read."""


def longest_waiting(
    connections: Iterable[OpenConnection], now_s: float, slow_s: float
) -> OpenConnection | None:
    """The connection that loses its place to a new one; None if each is in use.

    The one that has been idle for longest; without an idle one, the one whose client has needed longest, and
    more than `slow_s`, to send its request or to take its answer.
    """
    waiting = [(one.waits_since_s, one) for one in connections if one.waits_since_s is not None]
    candidates = [(since_s, one) for since_s, one in waiting if one.idle and not _has_sent(one.socket)]
    if not candidates:
        candidates = [(since_s, one) for since_s, one in waiting if not one.idle and now_s - since_s > slow_s]
    return min(candidates, key=lambda candidate: candidate[0], default=(0.0, None))[1]


def _has_sent(connection: socket.socket) -> bool:
    """Whether something came that the connection's thread did not read yet."""
    poll = select.poll()
    try:
        poll.register(connection, select.POLLIN)
    except ValueError:  # It is closed.
        return False
    return any(event & select.POLLIN for _, event in poll.poll(0))


class BoundedServer(ThreadingHTTPServer):
    """A thread for each connection, of which there are at most so many.

    One address has at most three quarters of them. A further connection takes the place of one whose client
    the server waits for: of the same address if that has its share, otherwise of the address with the most.
    If there is none, it gets status 503.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        connections: int,
        *,
        tls: ServerTls | None = None,
        handshake_s: float = 15.0,
        slow_s: float = _SLOW_S,
    ) -> None:
        super().__init__(address, handler)
        self._most = connections
        self._most_of_peer = connections - connections // 4
        self._tls = tls
        self._handshake_s = handshake_s
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._open: dict[socket.socket, OpenConnection] = {}
        self._was_full = False

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                time.sleep(_WITHOUT_DESCRIPTORS_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002  (socketserver's)
        log.error(
            "An HTTP connection failed.", exc_info=sys.exception(), extra={"client": str(client_address[0])}
        )

    def waits(self, connection: socket.socket, *, idle: bool) -> None:
        """The server waits for this connection's client from now on."""
        with self._lock:
            if (known := self._open.get(connection)) is not None:
                known.waits_since_s, known.idle = time.monotonic(), idle

    def answers(self, connection: socket.socket) -> None:
        """The client waits for the server."""
        with self._lock:
            if (known := self._open.get(connection)) is not None:
                known.waits_since_s, known.idle = None, False

    # What is called a request here is a connection: the names are socketserver's.
    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        peer, now_s = str(client_address[0]), time.monotonic()
        with self._lock:
            full_of = self._full_of(peer)
            dropped = self._drop_of(full_of, now_s) if full_of is not None else None
            taken = full_of is None or dropped is not None
            if taken:
                self._open[request] = OpenConnection(request, peer, now_s)
        if full_of is not None and not self._was_full:
            log.warning(
                "Too many HTTP connections are open: those that wait for their client longest are closed, "
                "and new ones refused if there is none.",
                extra={"client": full_of, "connections": self._most},
            )
        self._was_full = full_of is not None
        if taken:
            super().process_request(request, client_address)
        else:
            self._refuse(request)

    def _full_of(self, peer: str) -> str | None:
        """The address that has to give a place to a connection of `peer`; None if one is free."""
        peers = Counter(connection.peer for connection in self._open.values())
        if peers[peer] >= self._most_of_peer:
            return peer
        return peers.most_common(1)[0][0] if len(self._open) >= self._most else None

    def _drop_of(self, peer: str, now_s: float) -> OpenConnection | None:
        of_peer = (connection for connection in self._open.values() if connection.peer == peer)
        dropped = longest_waiting(of_peer, now_s, self._slow_s)
        if dropped is not None:
            del self._open[dropped.socket]
            with suppress(OSError):
                # Its thread wakes and ends. Not `SSLSocket.shutdown`, which that thread would trip over.
                socket.socket.shutdown(dropped.socket, socket.SHUT_RDWR)
        return dropped

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        secured = request
        if self._tls is not None:
            # In the connection's own thread: a client that is slow here keeps no other one waiting.
            request.settimeout(self._handshake_s)
            try:
                secured = self._handshake(request, self._tls.context())
            except OSError:
                self.shutdown_request(request)
                return
        super().process_request_thread(secured, client_address)

    def _handshake(self, request: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """The connection with TLS; `request` is of no use any more. Raises `OSError`."""
        with self._lock:
            secured = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            if (known := self._open.pop(request, None)) is not None:
                known.socket = secured
                self._open[secured] = known
        try:
            secured.do_handshake()
        except OSError:
            self.shutdown_request(secured)
            raise
        return secured

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def read_no_more(self) -> None:
        """Let each thread that waits for a request find that none comes any more."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)

    def _refuse(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):
            connection.sendall(_REFUSAL)
        super().shutdown_request(connection)


class RequestReader(DeadlineReader):
    """What a client sends: a request has to begin within `idle_s`, and be whole within `request_s` then."""

    def __init__(
        self, connection: socket.socket, server: BoundedServer, *, idle_s: float, request_s: float
    ) -> None:
        super().__init__(connection, 0.0)
        self._server = server
        self._idle_s = idle_s
        self._request_s = request_s
        self._begun = False

    def expect(self) -> None:
        """The next request may come from now on."""
        self._server.waits(self._connection, idle=True)
        self.deadline_s = time.monotonic() + self._idle_s
        self._begun = False

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        count = super().readinto(buffer)
        if not self._begun:
            self._begun = True
            self._server.waits(self._connection, idle=False)
            self.deadline_s = time.monotonic() + self._request_s
        return count


def allow_many_connections() -> None:
    """Use all file descriptors that this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # Then what there is has to do.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
