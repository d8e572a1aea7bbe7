"""Sends all series to an OpenTelemetry collector by OTLP over HTTP."""

from __future__ import annotations

import gzip
from collections.abc import Iterable

from perfd.config import OtlpConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.otlp.metrics_request import MetricsEncoder
from perfd.exporters.pending_bodies import Body
from perfd.exporters.series_push import SeriesPush

_KEY = "exporters.otlp"
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_GZIP_LEVEL = 1
"""The fastest level: names and labels repeat, which any level compresses."""


class OtlpExporter(SeriesPush):
    """Every series under its own name, those of GPUs under the semantic conventions' names too."""

    def __init__(self, config: OtlpConfig, context: ExporterContext) -> None:
        if config.max_points_per_request < 1:
            raise ConfigError(f"{_KEY}.max_points_per_request must be at least 1.")
        self._encoder = MetricsEncoder(config.resource_attributes, config.max_points_per_request, key=_KEY)
        super().__init__(config, context, key=_KEY, receiver="OpenTelemetry collector", headers=_HEADERS)

    def _bodies(self, round_: Round) -> Iterable[Body]:
        return self._encoder.encode(round_.frames.values())

    def _compress(self, data: bytes) -> bytes:
        return gzip.compress(data, _GZIP_LEVEL, mtime=0)
