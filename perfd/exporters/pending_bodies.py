"""Request bodies that wait for a receiver: sent in order, retried with increasing waits, bounded."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext
from perfd.exporters.http_post import Poster

log = logging.getLogger(__name__)
_NEWEST_S = 2.0
"""A body of a round that is at most so old is new, any other is a delayed one."""
_SEND_FOR_S = 5.0
"""In one turn: a backlog must not keep the newest round waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of one request, and how many samples it has."""

    data: bytes
    samples: int


class PendingBodies:
    """Keeps at most `max_bytes`, dropping the oldest. What is refused for good is lost, and counted."""

    def __init__(
        self,
        receiver: str,
        poster: Poster,
        headers: Mapping[str, str],
        *,
        max_bytes: int,
        backoff: Backoff,
        context: ExporterContext,
    ) -> None:
        """`receiver` names it in logs: `remote write receiver`."""
        self._receiver = receiver
        self._poster = poster
        self._headers = headers
        self._max_bytes = max_bytes
        self._backoff = backoff
        self._clock = context.clock
        self._tally = context.tally
        self._chance = context.chance
        self._pending: deque[Body] = deque()
        self._pending_bytes = 0
        self._refused = False

    def keep(self, body: Body) -> None:
        """Add one."""
        self._pending.append(body)
        self._pending_bytes += len(body.data)
        self._tally.pending += body.samples
        while self._pending_bytes > self._max_bytes:
            self._tally.lost += self._take().samples

    def send_after(self, round_unix_s: float) -> None:
        """Send what is due, unless further rounds wait: while the receiver is slow, these are taken first."""
        newest = self._clock.unix_ns() / 1e9 - round_unix_s < _NEWEST_S
        if newest or self._pending_bytes > self._max_bytes // 2:
            self._send()

    def close(self) -> None:
        """Try once more, and count the rest as lost."""
        self._send(at_once=True)
        self._tally.lost += sum(body.samples for body in self._pending)
        self._tally.pending = 0
        self._poster.close()

    def _take(self) -> Body:
        body = self._pending.popleft()
        self._pending_bytes -= len(body.data)
        self._tally.pending -= body.samples
        return body

    def _send(self, *, at_once: bool = False) -> None:
        if not at_once and not self._backoff.due(self._clock.monotonic_s()):
            return
        deadline_s = self._clock.monotonic_s() + _SEND_FOR_S
        while self._pending and (at_once or self._clock.monotonic_s() <= deadline_s):
            answer = self._poster.post(self._pending[0].data, self._headers)
            if answer.worth_retrying:
                self._tally.retries += 1
                if self._backoff.failures == 0:
                    log.warning(
                        "The %s is unreachable; samples wait.",
                        self._receiver,
                        extra={"status": answer.status, "answer": answer.text},
                    )
                self._backoff = self._backoff.failed(
                    self._clock.monotonic_s(), chance=self._chance(), at_least_s=answer.retry_after_s
                )
                return
            self._backoff = self._backoff.succeeded()
            body = self._take()
            if answer.taken:
                self._tally.sent += body.samples
                self._refused = False
            else:
                self._refuse(body, answer.status, answer.text)

    def _refuse(self, body: Body, status: int, text: str) -> None:
        # The same body would be refused forever.
        self._tally.lost += body.samples
        if not self._refused:
            log.error("The %s refuses samples.", self._receiver, extra={"status": status, "answer": text})
        self._refused = True
