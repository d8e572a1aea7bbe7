"""Wakes the pages that are open when a round of analysis ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from perfd.net import Request, Response

SCHEMA = "perfd.events/1"
_HEARTBEAT_S = 10.0
"""Between signs of life, so that proxies keep a connection that has nothing to send."""
_RECONNECT_MS = 2000
"""After which a browser connects again."""
_FULL = b'{"error": "Too many viewers are connected: poll every few seconds instead."}\n'
_CLOSING = b'{"error": "The aggregator is stopping."}\n'


class Live:
    """Streams of events, at most `viewers` at a time: each holds a thread of the server.

    An event only announces that a round is over, and a viewer that was busy gets the newest one. So nothing
    is queued for a slow viewer, and numbers have one form: that of the JSON API.
    """

    def __init__(self, *, viewers: int = 32, heartbeat_s: float = _HEARTBEAT_S) -> None:
        self._most = viewers
        self._heartbeat_s = heartbeat_s
        self._changed = threading.Condition()
        self._round = 0
        self._viewers = 0
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        with self._changed:
            return self._viewers

    def notify(self) -> None:
        """There are newer numbers."""
        with self._changed:
            self._round += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams, and refuse new ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def connect(self, _: Request) -> Response:
        """Open a stream; status 503 when there are enough."""
        with self._changed:
            if self._closed or self._viewers >= self._most:
                return Response(body=_CLOSING if self._closed else _FULL, status=503)
            self._viewers += 1
            # A round that ends before the stream is first read must not pass for the one that was there.
            current = self._round
        return Response(
            stream=_Viewer(self, current),
            content_type="text/event-stream; charset=utf-8",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def wait(self, seen: int) -> int | None:
        """The newest round once it is not `seen`, or `seen` after the heartbeat's time; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._round != seen, self._heartbeat_s)
            return None if self._closed else self._round

    def leave(self) -> None:
        """A viewer went away."""
        with self._changed:
            self._viewers -= 1


class _Viewer:
    """One browser's stream: the round that is over now, then each newer one."""

    def __init__(self, live: Live, current: int) -> None:
        self._live = live
        self._current = current

    def __iter__(self) -> Iterator[bytes]:
        yield b"retry: %d\n\n" % _RECONNECT_MS
        seen = self._current
        yield _event(seen)
        while (newest := self._live.wait(seen)) is not None:
            # A comment finds out whether the viewer is still there.
            yield b": still here\n\n" if newest == seen else _event(newest)
            seen = newest

    def close(self) -> None:
        self._live.leave()


def _event(number: int) -> bytes:
    data = msgspec.json.encode({"schema": SCHEMA, "round": number})
    return b"event: round\nid: %d\ndata: %s\n\n" % (number, data)
