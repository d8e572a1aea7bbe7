"""Sends all series to Prometheus, Mimir, Thanos, VictoriaMetrics and the like by remote write 1.0."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from perfd.config import RemoteWriteConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.labels import check_external_labels
from perfd.exporters.pending_bodies import Body
from perfd.exporters.remote_write.write_request import FrameEncoder
from perfd.exporters.series_push import SeriesPush

_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_KEY = "exporters.remote_write"


class RemoteWriteExporter(SeriesPush):
    """Samples are sent in order of time, because Prometheus refuses others.

    At the end no series is marked stale, so that a restarted aggregator leaves no gap.
    """

    def __init__(self, config: RemoteWriteConfig, context: ExporterContext) -> None:
        if config.max_samples_per_request < 1:
            raise ConfigError(f"{_KEY}.max_samples_per_request must be at least 1.")
        self._snappy = _snappy()
        labels = check_external_labels(config.external_labels, key=_KEY)
        self._encoder = FrameEncoder(labels, config.max_samples_per_request)
        super().__init__(config, context, key=_KEY, receiver="remote write receiver", headers=_HEADERS)

    def _bodies(self, round_: Round) -> Iterable[Body]:
        return self._encoder.encode(round_.frames)

    def _compress(self, data: bytes) -> bytes:
        return bytes(self._snappy.compress_raw(data))


def _snappy() -> Any:  # noqa: ANN401  (a module without types)
    try:
        return importlib.import_module("cramjam").snappy
    except ImportError as error:
        raise ConfigError(f"{_KEY}: install perfd[remote-write] for its compression.") from error
