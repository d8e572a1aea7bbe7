"""The base of exporters that push all series over HTTP: at an interval, compressed, kept while they wait."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfd.config.exporter_config import PushConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.http_post import Poster

log = logging.getLogger(__name__)
_EARLY_S = 1e-3
"""Rounds come about every second; one that is this much early is still sent."""
_NEWEST_S = 2.0
"""A body of a round that is at most so old is new, any other is a delayed one."""
_SEND_FOR_S = 5.0
"""In one turn: a backlog must not keep the newest round waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of one request, and how many samples it has."""

    data: bytes
    samples: int


class SeriesPush(ABC):
    """Sends the bodies of every round that is due, in order, and retries with increasing waits.

    It keeps at most `max_pending_bytes`, dropping the oldest. What is refused for good is lost, and counted.
    """

    def __init__(
        self,
        config: PushConfig,
        context: ExporterContext,
        *,
        key: str,
        receiver: str,
        headers: Mapping[str, str],
    ) -> None:
        """`key` names the exporter in errors of configuration, `receiver` the other side in logs."""
        if config.url is None:
            raise ConfigError(f"{key}.url: required.")
        if not config.interval_s >= 0:
            raise ConfigError(f"{key}.interval_s must not be negative.")
        self._interval_s = config.interval_s
        self._sent_unix_s: float | None = None
        self._receiver = receiver
        self._poster = Poster(config.url, config.http, key=key)
        self._headers = headers
        self._max_bytes = config.max_pending_bytes
        self._backoff = Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s)
        self._clock = context.clock
        self._tally = context.tally
        self._chance = context.chance
        self._pending: deque[Body] = deque()
        self._pending_bytes = 0
        self._refused = False

    def export(self, round_: Round) -> None:
        last = self._sent_unix_s
        if last is None or not 0 <= round_.time_unix_s - last < self._interval_s - _EARLY_S:
            self._sent_unix_s = round_.time_unix_s
            for body in self._bodies(round_):
                self._keep(Body(data=self._compress(body.data), samples=body.samples))
        newest = self._clock.unix_ns() / 1e9 - round_.time_unix_s < _NEWEST_S
        # While the receiver is slow, further rounds that wait are taken first.
        if newest or self._pending_bytes > self._max_bytes // 2:
            self._send()

    def close(self) -> None:
        self._send(at_once=True)
        self._tally.lost += sum(body.samples for body in self._pending)
        self._tally.pending = 0
        self._poster.close()

    @abstractmethod
    def _bodies(self, round_: Round) -> Iterable[Body]:
        """The requests that carry a round, uncompressed."""

    @abstractmethod
    def _compress(self, data: bytes) -> bytes:
        """A request's body as it is sent."""

    def _keep(self, body: Body) -> None:
        self._pending.append(body)
        self._pending_bytes += len(body.data)
        self._tally.pending += body.samples
        while self._pending_bytes > self._max_bytes:
            self._tally.lost += self._take().samples

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
