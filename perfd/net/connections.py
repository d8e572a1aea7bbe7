"""How many connections an HTTP server has at a time, and for how long each may keep its thread waiting."""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from perfd.net.deadline import DeadlineReader
from perfd.net.server_tls import ServerTls

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


class BoundedServer(ThreadingHTTPServer):
    """A thread for each connection, of which there are at most so many; further ones get status 503.

    One address has at most three quarters of them.
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
    ) -> None:
        super().__init__(address, handler)
        self._most = connections
        self._most_of_peer = connections - connections // 4
        self._tls = tls
        self._handshake_s = handshake_s
        self._peers: Counter[str] = Counter()
        self._peer_of: dict[socket.socket, str] = {}
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
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

    # What is called a request here is a connection: the names are socketserver's.
    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        with self._lock:
            peer = str(client_address[0])
            full = len(self._open) >= self._most or self._peers[peer] >= self._most_of_peer
            if not full:
                self._open.add(request)
                self._peers[peer] += 1
                self._peer_of[request] = peer
        if full and not self._was_full:
            log.warning("Too many HTTP connections are open; further ones are refused.")
        self._was_full = full
        if full:
            self._refuse(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        secured = request
        if self._tls is not None:
            # In the connection's own thread: a client that is slow here keeps no other one waiting.
            request.settimeout(self._handshake_s)
            try:
                secured = self._tls.context().wrap_socket(request, server_side=True)
            except OSError:
                self.shutdown_request(request)
                return
            with self._lock:
                self._open.discard(request)
                self._open.add(secured)
                self._peer_of[secured] = self._peer_of.pop(request)
        super().process_request_thread(secured, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        with self._lock:
            self._open.discard(request)
            peer = self._peer_of.pop(request, None)
            if peer is not None:
                self._peers[peer] -= 1
                self._peers += Counter()
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

    def __init__(self, connection: socket.socket, *, idle_s: float, request_s: float) -> None:
        super().__init__(connection, 0.0)
        self._idle_s = idle_s
        self._request_s = request_s
        self._begun = False

    def expect(self) -> None:
        """The next request may come from now on."""
        self.deadline_s = time.monotonic() + self._idle_s
        self._begun = False

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        count = super().readinto(buffer)
        if not self._begun:
            self._begun = True
            self.deadline_s = time.monotonic() + self._request_s
        return count
