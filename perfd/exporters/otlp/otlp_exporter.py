"""Sends all series to an OpenTelemetry collector by OTLP over HTTP."""

from __future__ import annotations

import gzip

from perfd.config import OtlpConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.http_post import Poster
from perfd.exporters.otlp.metrics_request import MetricsEncoder
from perfd.exporters.pending_bodies import Body, PendingBodies

_KEY = "exporters.otlp"
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_GZIP_LEVEL = 1


class OtlpExporter:
    """Every series under its own name, those of GPUs under the semantic conventions' names too."""

    def __init__(self, config: OtlpConfig, context: ExporterContext) -> None:
        if config.url is None:
            raise ConfigError(f"{_KEY}.url: required.")
        if config.max_points_per_request < 1:
            raise ConfigError(f"{_KEY}.max_points_per_request must be at least 1.")
        if not config.interval_s >= 0:
            raise ConfigError(f"{_KEY}.interval_s must not be negative.")
        self._encoder = MetricsEncoder(config.resource_attributes, config.max_points_per_request, key=_KEY)
        self._interval_s = config.interval_s
        self._sent_unix_s: float | None = None
        self._pending = PendingBodies(
            "OpenTelemetry collector",
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
            for body in self._encoder.encode(round_.frames.values()):
                compressed = gzip.compress(body.data, _GZIP_LEVEL, mtime=0)
                self._pending.keep(Body(data=compressed, samples=body.samples))
        self._pending.send_after(round_.time_unix_s)

    def close(self) -> None:
        self._pending.close()
