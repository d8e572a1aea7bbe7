"""Sends all series to Prometheus, Mimir, Thanos, VictoriaMetrics and the like by remote write 1.0."""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from perfd.config import RemoteWriteConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.http_post import Poster
from perfd.exporters.labels import check_external_labels
from perfd.exporters.remote_write.write_request import Body, FrameEncoder

log = logging.getLogger(__name__)
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_KEY = "exporters.remote_write"


_NEWEST_S = 2.0
_SEND_FOR_S = 5.0


class RemoteWriteExporter:
    """Batches, retries with increasing waits, and keeps at most `max_pending_bytes`, dropping the oldest.

    Samples are sent in order of time, because Prometheus refuses others. At the end no series is marked
    stale, so that a restarted aggregator leaves no gap.
    """

    def __init__(self, config: RemoteWriteConfig, context: ExporterContext) -> None:
        if config.url is None:
            raise ConfigError(f"{_KEY}.url: required.")
        if config.max_samples_per_request < 1:
            raise ConfigError(f"{_KEY}.max_samples_per_request must be at least 1.")
        if not config.interval_s >= 0:
            raise ConfigError(f"{_KEY}.interval_s must not be negative.")
        self._compress = _snappy()
        self._poster = Poster(config.url, config.http, key=_KEY)
        labels = check_external_labels(config.external_labels, key=_KEY)
        self._encoder = FrameEncoder(labels, config.max_samples_per_request)
        self._interval_s = config.interval_s
        self._max_pending_bytes = config.max_pending_bytes
        self._clock = context.clock
        self._tally = context.tally
        self._chance = context.chance
        self._pending: deque[Body] = deque()
        self._pending_bytes = 0
        self._sent_unix_s: float | None = None
        self._backoff = Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s)
        self._refused = False

    def export(self, round_: Round) -> None:
        last = self._sent_unix_s
        if last is None or not 0 <= round_.time_unix_s - last < self._interval_s - 1e-3:
            self._sent_unix_s = round_.time_unix_s
            for body in self._encoder.encode(round_.frames):
                self._keep(Body(data=self._compress(body.data), samples=body.samples))
        if self._newest(round_) or self._pending_bytes > self._max_pending_bytes // 2:
            self._send()

    def close(self) -> None:
        self._send(at_once=True)
        self._tally.lost += sum(body.samples for body in self._pending)
        self._tally.pending = 0
        self._poster.close()

    def _newest(self, round_: Round) -> bool:
        """Whether no further round waits: while the receiver is slow, rounds are taken first."""
        return self._clock.unix_ns() / 1e9 - round_.time_unix_s < _NEWEST_S

    def _keep(self, body: Body) -> None:
        self._pending.append(body)
        self._pending_bytes += len(body.data)
        self._tally.pending += body.samples
        while self._pending_bytes > self._max_pending_bytes:
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
            answer = self._poster.post(self._pending[0].data, _HEADERS)
            if answer.worth_retrying:
                self._tally.retries += 1
                if self._backoff.failures == 0:
                    log.warning(
                        "The remote write receiver is unreachable; samples wait.",
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
        # The specification forbids retries of 4xx: the same body would be refused forever.
        self._tally.lost += body.samples
        if not self._refused:
            log.error("The remote write receiver refuses samples.", extra={"status": status, "answer": text})
        self._refused = True


def _snappy() -> Callable[[bytes], bytes]:
    try:
        snappy: Any = importlib.import_module("cramjam").snappy
    except ImportError as error:
        raise ConfigError(f"{_KEY}: install perfd[remote-write] for its compression.") from error
    return lambda data: bytes(snappy.compress_raw(data))
