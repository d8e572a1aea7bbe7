"""Sends all series to Prometheus, Mimir, Thanos, VictoriaMetrics and the like by remote write 1.0."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from perfd.config import RemoteWriteConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.http_post import Poster
from perfd.exporters.labels import check_external_labels
from perfd.exporters.pending_bodies import Body, PendingBodies
from perfd.exporters.remote_write.write_request import FrameEncoder

_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_KEY = "exporters.remote_write"


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
        labels = check_external_labels(config.external_labels, key=_KEY)
        self._encoder = FrameEncoder(labels, config.max_samples_per_request)
        self._interval_s = config.interval_s
        self._sent_unix_s: float | None = None
        self._pending = PendingBodies(
            "remote write receiver",
            Poster(config.url, config.http, key=_KEY),
            _HEADERS,
            max_bytes=config.max_pending_bytes,
            backoff=Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s),
            context=context,
        )

    def export(self, round_: Round) -> None:
        last = self._sent_unix_s
        if last is None or not 0 <= round_.time_unix_s - last < self._interval_s - 1e-3:
            self._sent_unix_s = round_.time_unix_s
            for body in self._encoder.encode(round_.frames):
                self._pending.keep(Body(data=self._compress(body.data), samples=body.samples))
        self._pending.send_after(round_.time_unix_s)

    def close(self) -> None:
        self._pending.close()


def _snappy() -> Callable[[bytes], bytes]:
    try:
        snappy: Any = importlib.import_module("cramjam").snappy
    except ImportError as error:
        raise ConfigError(f"{_KEY}: install perfd[remote-write] for its compression.") from error
    return lambda data: bytes(snappy.compress_raw(data))
