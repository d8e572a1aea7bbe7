"""Connections and reads that are over at one moment, however slow names, networks and the other side are."""

from __future__ import annotations

import http.client
import io
import queue
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 256 * 1024
"""Size of one read from a socket."""
_Address: TypeAlias = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` has it."""


def left_s(deadline_s: float) -> float:
    """How long it is until a moment of the monotonic clock; raises `TimeoutError` when it is over."""
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def connect(host: str, port: int, deadline_s: float) -> socket.socket:
    """A TCP connection to the first address of a host that takes one; raises `OSError`, at the latest then.

    Each address has its share of the time, so that one that is dead leaves some to the next.
    """
    addresses = _look_up(host, port, deadline_s)
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        share_s = left_s(deadline_s) / (len(addresses) - place)
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(share_s)
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _look_up(host: str, port: int, deadline_s: float) -> Sequence[_Address]:
    """A name's addresses. The system's resolver has limits of its own only, so a thread waits for it."""
    found: queue.SimpleQueue[Sequence[_Address] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.put(error)
        except UnicodeError as error:
            found.put(OSError(f"{host!r} is not a name of a host: {error}"))

    threading.Thread(target=ask, name="perfd-lookup", daemon=True).start()
    try:
        answer = found.get(timeout=left_s(deadline_s))
    except queue.Empty:
        raise TimeoutError(f"the name {host} was not found in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


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
