"""Reads from a socket that are over at one moment, however slowly the other side sends."""

from __future__ import annotations

import http.client
import io
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 256 * 1024


def left_s(deadline_s: float) -> float:
    """How long it is until a moment of the monotonic clock; raises `TimeoutError` when it is over."""
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def limit(connection: http.client.HTTPConnection, timeout_s: float) -> None:
    """Let reading whatever `connection` answers raise `TimeoutError` when `timeout_s` from now are over."""
    deadline_s = time.monotonic() + timeout_s
    connection.response_class = partial(_response, deadline_s)  # type: ignore[assignment]  # A factory will do.


class DeadlineReader(io.RawIOBase):
    """What a socket receives until `deadline_s`, then `TimeoutError`; its own limit is of one `recv` only."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        """Of the monotonic clock; may be changed."""
        self._connection = connection
        # It keeps the socket alive as long as it is open itself, as http.client relies on.
        self._raw = connection.makefile("rb", buffering=0)

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        """What `http.client` asks of a socket."""
        return io.BufferedReader(self, _CHUNK_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        self._connection.settimeout(left_s(self.deadline_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(
    deadline_s: float, connected: socket.socket, debuglevel: int = 0, method: str | None = None
) -> http.client.HTTPResponse:
    bounded: Any = DeadlineReader(connected, deadline_s)
    return http.client.HTTPResponse(bounded, debuglevel, method)
