"""HTTP connections on which a whole request and its answer have one deadline."""

from __future__ import annotations

import http.client
from typing import Any

from perfd.deadline import left_s, limit


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
        limit(self, left_s(self.deadline_s))
        return super().getresponse()


class BoundedTlsConnection(BoundedConnection, http.client.HTTPSConnection):
    """The same over TLS."""
