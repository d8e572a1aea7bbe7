"""HTTP connections on which a whole request and its answer have one deadline."""

from __future__ import annotations

import http.client
import socket
from typing import Any

from perfd.deadline import connect, left_s, limit


class BoundedConnection(http.client.HTTPConnection):
    """Raises `TimeoutError` at `deadline_s`, set before each request, when its answer is not whole by then.

    http.client's own limit is one of each read, so that a byte now and then holds its caller for ever,
    and it has none for finding a name. Only the handshake of TLS has one of each read here too.
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


class BoundedTlsConnection(BoundedConnection, http.client.HTTPSConnection):
    """The same over TLS."""
