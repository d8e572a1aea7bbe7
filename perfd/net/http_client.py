"""HTTP connections on which a whole request and its answer have one deadline."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
from typing import Any

from perfd.net.deadline import connect, left_s, limit


class BoundedConnection(http.client.HTTPConnection):
    """An HTTP connection that raises `TimeoutError` when an answer is not whole at `deadline_s`.

    It is set before each request. http.client's own limit is one of each read, so that a byte now and then
    holds its caller for ever, and it has none for finding a name.
    """

    deadline_s = float("inf")
    """Of the monotonic clock."""

    def connect(self) -> None:
        # Where http.client lets its users say how a connection is made; TLS comes on top of it.
        self._create_connection = self._connected
        super().connect()

    def _connected(self, address: tuple[str, int], *_: object) -> socket.socket:
        connection = connect(*address, self.deadline_s)
        connection.settimeout(left_s(self.deadline_s))
        return connection

    def send(self, data: Any) -> None:  # noqa: ANN401  (as http.client has it)
        if self.sock is None:
            self.connect()
        unsent = memoryview(data)
        while unsent:
            self.sock.settimeout(left_s(self.deadline_s))
            unsent = unsent[self.sock.send(unsent) :]

    def getresponse(self) -> http.client.HTTPResponse:
        limit(self, left_s(self.deadline_s))
        return super().getresponse()


class BoundedTlsConnection(BoundedConnection):
    """The same over TLS, its handshake included."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, host: str, port: int | None = None, *, context: ssl.SSLContext) -> None:
        super().__init__(host, port)
        self._context = context

    def _connected(self, address: tuple[str, int], *_: object) -> socket.socket:
        connection = super()._connected(address)
        try:
            return secure_connection(connection, self._context, self.host, self.deadline_s)
        except BaseException:
            connection.close()
            raise


def secure_connection(
    connection: socket.socket, context: ssl.SSLContext, host: str, deadline_s: float
) -> ssl.SSLSocket:
    """The connection with TLS on it; its handshake goes step by step, since `ssl` only bounds each read."""
    connection.setblocking(False)
    secured = context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
    try:
        while (awaited := _step(secured)) is not None:
            poll = select.poll()
            poll.register(secured, awaited)
            poll.poll(1000 * left_s(deadline_s))
        secured.settimeout(left_s(deadline_s))
    except BaseException:
        secured.close()
        raise
    return secured


def _step(secured: ssl.SSLSocket) -> int | None:
    """Go on with the handshake; what it waits for then, or None when it is made."""
    try:
        secured.do_handshake()
    except ssl.SSLWantReadError:
        return select.POLLIN
    except ssl.SSLWantWriteError:
        return select.POLLOUT
    return None
