"""HTTP connections on which a whole request and its answer have one deadline."""

from __future__ import annotations

import http.client
import io
import socket
from functools import partial
from typing import Any

from perfd.deadline import DeadlineReader, left_s


class BoundedConnection(http.client.HTTPConnection):
    """Raises `TimeoutError` at `deadline_s`, set before each request, when its answer is not whole by then.

    http.client's own limit is one of each read, so that a byte now and then holds its caller for ever.
    Only what comes before the request is bounded more loosely: each address of the host has that time.
    """

    deadline_s = float("inf")
    """Of the monotonic clock."""

    def connect(self) -> None:
        self.timeout = left_s(self.deadline_s)
        super().connect()

    def send(self, data: Any) -> None:  # noqa: ANN401  (as http.client has it)
        if self.sock is None:
            self.connect()
        unsent = memoryview(data)
        while unsent:
            self.sock.settimeout(left_s(self.deadline_s))
            unsent = unsent[self.sock.send(unsent) :]

    def getresponse(self) -> http.client.HTTPResponse:
        self.response_class = partial(_Answer, self.deadline_s)  # type: ignore[assignment]  # called like the class
        return super().getresponse()


class BoundedTlsConnection(BoundedConnection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Answer(http.client.HTTPResponse):
    def __init__(self, deadline_s: float, sock: socket.socket, **more: Any) -> None:  # noqa: ANN401  (for http.client)
        super().__init__(sock, **more)
        self.fp.close()
        self.fp = io.BufferedReader(DeadlineReader(sock, deadline_s))
