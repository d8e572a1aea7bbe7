"""Connections of the HTTP server: how many there are, and for how long each may wait for its client."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 64
"""At one time; a new one replaces the longest idle one. Chosen."""
_REQUEST_S = 15.0
"""For a request to begin on a new connection and be whole, and for each piece of an answer to be taken."""
_RECEIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class ClientConnection(H11Protocol):
    """A connection that makes room for others while its client sends nothing.

    uvicorn ends a connection only between two requests: without this, clients that connect and stay silent
    could keep all others out, before any of them shows a token.
    """

    waits_since_s: float | None = None
    """Of the loop's clock, while the rest of a request is expected."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MOST_CONNECTIONS:
            self._make_room()
        super().connection_made(transport)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_REQUEST_S * 1000))
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._received()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in _RECEIVED:
            self._received()

    def on_response_complete(self) -> None:
        self._expect()
        super().on_response_complete()
        if self.conn.their_state in _RECEIVED:
            # The next request was there already.
            self._received()

    def _expect(self) -> None:
        self._received()
        self.waits_since_s = self.loop.time()
        self._deadline = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _received(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.waits_since_s = self._deadline = None

    def _make_room(self) -> None:
        """Close the connection that has waited for its client for longest; none if each is answered."""
        waiting = [
            (one.waits_since_s, number, one)
            for number, one in enumerate(self.connections)
            if isinstance(one, ClientConnection) and one.waits_since_s is not None
        ]
        if waiting:
            _, _, longest = min(waiting)
            longest.transport.abort()
            # `connection_lost` comes with the loop's next turn.
            self.connections.discard(longest)
