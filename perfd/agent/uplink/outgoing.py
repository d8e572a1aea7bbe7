"""The messages of one connection, in the order and at the pace that the protocol allows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from perfd.agent.spool import Spool
from perfd.model import AcknowledgeEach, AgentMessage, CaptureStatus, Goodbye, Hello
from perfd.wire import convert

Statuses: TypeAlias = dict[tuple[str, tuple[int, ...]], CaptureStatus]
"""By capture and ranks: the ranks of a node can end in several ways."""


def put_status(statuses: Statuses, status: CaptureStatus) -> None:
    """Replace the older status of the same ranks; a final one also ends all that are open."""
    if status.state.final:
        over = [key for key, old in statuses.items() if key[0] == status.capture_id and not old.state.final]
        for key in over:
            del statuses[key]
    key = (status.capture_id, tuple(status.ranks))
    statuses.pop(key, None)
    statuses[key] = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long the aggregator may be silent when it owes an answer."""

    welcome_s: float = 15.0
    acknowledgement_s: float = 60.0


class OutgoingMessages:
    """An iterator of encoded messages that blocks until there is one to send; called by gRPC's thread.

    `Hello` comes first; no batch or status follows before `welcomed`. Then come statuses, and
    batches of the spool after the one that the aggregator has, of which at most
    `window` are unacknowledged. `changed` guards all state; the code that adds to the
    spool notifies it. With `changed` held, `on_sent` is called for each batch, and
    `on_stall` when an answer is overdue.
    """

    def __init__(
        self,
        *,
        hello: Hello,
        spool: Spool,
        window: int,
        statuses: Iterable[CaptureStatus],
        changed: threading.Condition,
        on_stall: Callable[[], object],
        on_sent: Callable[[int], object],
        monotonic_s: Callable[[], float],
        timeouts: Timeouts,
    ) -> None:
        self._first: deque[AgentMessage] = deque([hello])
        """What goes before all else, a welcome too."""
        self._spool = spool
        self._window = window
        self._statuses: Statuses = {}
        for status in statuses:
            put_status(self._statuses, status)
        self._changed = changed
        self._on_stall = on_stall
        self._on_sent = on_sent
        self._monotonic_s = monotonic_s
        self._timeouts = timeouts
        self._sent = 0
        self._in_flight: deque[int] = deque()
        self._welcomed = False
        self._hurried = hello.acknowledge_every <= 1
        """Whether the aggregator knows, or is about to, that each batch is waited for."""
        self._finishing = False
        self._goodbye: Goodbye | None = None
        self._closed = False
        self._owed_since_s: float | None = monotonic_s()

    @property
    def sent_sequence(self) -> int:
        """The newest batch that was sent, or that the aggregator had before; call with `changed` held."""
        return self._sent

    @property
    def statuses_pending(self) -> bool:
        """Whether statuses wait to be sent; call with `changed` held."""
        return bool(self._statuses)

    def welcomed(self, last_sequence: int) -> None:
        """Continue after `last_sequence`; call with `changed` held."""
        self._welcomed = True
        self._sent = last_sequence
        self._owed_since_s = None
        self._changed.notify_all()

    def acknowledged(self, sequence: int) -> None:
        """Open the window; call with `changed` held."""
        while self._in_flight and self._in_flight[0] <= sequence:
            self._in_flight.popleft()
        self._owed_since_s = self._monotonic_s() if self._in_flight else None
        self._changed.notify_all()

    def add_status(self, status: CaptureStatus) -> None:
        """Send a status, in place of an older one of the same ranks; call with `changed` held."""
        put_status(self._statuses, status)
        self._changed.notify_all()

    def hurry(self) -> None:
        """Have each batch acknowledged at once from here on; call with `changed` held."""
        if not self._hurried:
            self._hurried = True
            self._first.append(AcknowledgeEach())
            self._changed.notify_all()

    def finish(self, goodbye: Goodbye) -> None:
        """End the iteration with `goodbye` once everything was sent; call with `changed` held."""
        self._finishing = True
        self._goodbye = goodbye
        self._changed.notify_all()

    def close(self) -> None:
        """End the iteration now; call with `changed` held."""
        self._closed = True
        self._changed.notify_all()

    def __iter__(self) -> OutgoingMessages:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            while not self._closed:
                message = self._next_message()
                if message is not None:
                    return message
                if self._finishing:
                    goodbye, self._goodbye = self._goodbye, None
                    if goodbye is None or not self._welcomed:
                        break
                    return convert.encode_message(goodbye)
                self._wait()
            raise StopIteration

    def _next_message(self) -> bytes | None:
        if self._first:
            return convert.encode_message(self._first.popleft())
        if not self._welcomed:
            return None
        if self._statuses:
            return convert.encode_message(self._statuses.pop(next(iter(self._statuses))))
        if len(self._in_flight) >= self._window:
            return None
        for batch in self._spool.read_after(self._sent, limit=1):
            self._sent = batch.sequence
            self._in_flight.append(batch.sequence)
            self._on_sent(batch.sequence)
            if self._owed_since_s is None:
                self._owed_since_s = self._monotonic_s()
            return batch.payload
        return None

    def _wait(self) -> None:
        if self._owed_since_s is None:
            self._changed.wait()
            return
        patience_s = self._timeouts.acknowledgement_s if self._welcomed else self._timeouts.welcome_s
        left_s = self._owed_since_s + patience_s - self._monotonic_s()
        if left_s > 0:
            self._changed.wait(left_s)
            return
        self._closed = True
        self._on_stall()
