"""Sends all series to an OpenTelemetry collector by OTLP over HTTP."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from perfd import __version__
from perfd.config import OtlpConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.otlp.gpu_conventions import GPU_METRICS, Instrument, gpu_attributes
from perfd.exporters.series_push import Body, SeriesPush
from perfd.metrics.series import SeriesFrame, SeriesKey

# ruff: noqa: ANN401  (the types are an extra's)

_KEY = "exporters.otlp"
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_GZIP_LEVEL = 1
"""The fastest level: names and labels repeat, which any level compresses."""


class MetricsEncoder:
    """Encodes frames; an absent value has no point."""

    def __init__(self, attributes: Mapping[str, str], max_points: int, *, key: str) -> None:
        """`attributes` are those of the resource. Raises `ConfigError` without OpenTelemetry's types."""
        self._types = _types("metrics.v1.metrics", key)
        self._service = _types("collector.metrics.v1.metrics_service", key)
        self._common = _types("common.v1.common", key)
        known = {"service.name": "perfd", "service.version": __version__}
        self._resource = self._attributes({**known, **attributes})
        self._max_points = max_points

    def encode(self, frames: Iterable[SeriesFrame]) -> Iterator[Body]:
        """Requests of about `max_points` points each."""
        request, metrics, points = self._new()
        for frame in frames:
            time_unix_ns = round(frame.time_unix_s * 1e9)
            for place in np.flatnonzero(~np.isnan(frame.values)).tolist():
                points += self._put(metrics, frame.keys[place], float(frame.values[place]), time_unix_ns)
                if points >= self._max_points:
                    yield Body(data=request.SerializeToString(), samples=points)
                    request, metrics, points = self._new()
        if points:
            yield Body(data=request.SerializeToString(), samples=points)

    def _new(self) -> tuple[Any, _Metrics, int]:
        request = self._service.ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        resource.resource.attributes.extend(self._resource)
        scope = resource.scope_metrics.add()
        scope.scope.name, scope.scope.version = "perfd", __version__
        return request, _Metrics(scope.metrics, self._types), 0

    def _put(self, metrics: _Metrics, key: SeriesKey, value: float, time_unix_ns: int) -> int:
        own = Instrument.COUNTER if key.name.endswith("_total") else Instrument.GAUGE
        point = metrics.point(key.name, "", own)
        point.time_unix_nano, point.as_double = time_unix_ns, value
        point.attributes.extend(self._attributes(dict(key.labels)))
        known = GPU_METRICS.get(key.name)
        if known is None:
            return 1
        point = metrics.point(known.name, known.unit, known.instrument)
        point.time_unix_nano, point.as_double = time_unix_ns, value
        point.attributes.extend(self._attributes({**gpu_attributes(key), **known.attributes}))
        return 2

    def _attributes(self, texts: Mapping[str, str]) -> list[Any]:
        value, pair = self._common.AnyValue, self._common.KeyValue
        return [pair(key=name, value=value(string_value=text)) for name, text in sorted(texts.items())]


class _Metrics:
    """The metrics of one request, by name."""

    def __init__(self, metrics: Any, types: Any) -> None:
        self._metrics = metrics
        self._types = types
        self._by_name: dict[str, Any] = {}

    def point(self, name: str, unit: str, instrument: Instrument) -> Any:
        """A new point of the metric."""
        data = self._by_name.get(name)
        if data is None:
            metric = self._metrics.add(name=name, unit=unit)
            data = metric.gauge if instrument is Instrument.GAUGE else metric.sum
            if instrument is not Instrument.GAUGE:
                data.is_monotonic = instrument is Instrument.COUNTER
                data.aggregation_temporality = self._types.AGGREGATION_TEMPORALITY_CUMULATIVE
            self._by_name[name] = data
        return data.data_points.add()


def _types(name: str, key: str) -> Any:
    try:
        return importlib.import_module(f"opentelemetry.proto.{name}_pb2")
    except ImportError as error:
        raise ConfigError(f"{key}: install perfd[otlp] for OpenTelemetry's types.") from error


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
