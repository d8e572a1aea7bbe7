"""Sends all series to Prometheus, Mimir, Thanos, VictoriaMetrics and the like by remote write 1.0."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.config import RemoteWriteConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.labels import check_external_labels
from perfd.exporters.series_push import Body, SeriesPush
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.protobuf_encoding import field, varint

_STALE_MARKER = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN that ends a series: `StaleNaN` of Prometheus' model/value."""
_VALUE_BYTES = 8
"""Size of a double."""
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_KEY = "exporters.remote_write"


@dataclass(frozen=True, slots=True)
class _Group:
    """The newest frame of a group."""

    time_unix_s: float
    keys: Sequence[SeriesKey]
    heads: Sequence[bytes]
    """For each key, all bytes before its value."""
    present: NDArray[np.bool_]


class FrameEncoder:
    """Turns frames into bodies. Caches the bytes of all labels while a group's keys stay the same object.

    A series that was in the last frame of its group and is absent from this one is ended with a stale
    marker, as Prometheus does with a target's series. A series' own labels override external ones.
    """

    def __init__(self, external_labels: Mapping[str, str], max_samples: int) -> None:
        self._external = dict(external_labels)
        self._max_samples = max_samples
        self._groups: dict[str, _Group] = {}
        self._tail_bytes = 0

    def encode(self, frames: Mapping[str, SeriesFrame]) -> Iterator[Body]:
        """Bodies with the newest values; a frame that is not newer than its group's last adds nothing."""
        samples: list[bytes] = []
        for name, frame in frames.items():
            tail = b"\x10" + varint(round(frame.time_unix_s * 1000))
            if len(tail) != self._tail_bytes:
                # Never in two rounds of one century; cached series lengths include the time.
                self._groups.clear()
                self._tail_bytes = len(tail)
            group = self._groups.get(name)
            if group is not None and frame.time_unix_s <= group.time_unix_s:
                continue
            new = self._group(group, frame)
            self._groups[name] = new
            samples += _samples(new, frame, tail)
            if group is not None:
                samples += [head + _STALE_MARKER + tail for head in _ended(group, new)]
        for start in range(0, len(samples), self._max_samples):
            chunk = samples[start : start + self._max_samples]
            yield Body(data=b"".join(chunk), samples=len(chunk))

    def _group(self, old: _Group | None, frame: SeriesFrame) -> _Group:
        present = ~np.isnan(frame.values)
        if old is not None and old.keys is frame.keys:
            return _Group(frame.time_unix_s, frame.keys, old.heads, present)
        known = {} if old is None else dict(zip(old.keys, old.heads, strict=True))
        heads = [known.get(key) or self._head(key) for key in frame.keys]
        return _Group(frame.time_unix_s, frame.keys, heads, present)

    def _head(self, key: SeriesKey) -> bytes:
        """The labels (1) of a TimeSeries, and the start of its sample (2): a double (1), a time (2)."""
        labels = {**self._external, **dict(key.labels), "__name__": key.name}
        prefix = b"".join(
            field(1, field(1, name.encode()) + field(2, value.encode()))
            for name, value in sorted(labels.items())
        )
        sample_bytes = 1 + _VALUE_BYTES + self._tail_bytes
        sample = b"\x12" + varint(sample_bytes) + b"\x09"
        series_bytes = len(prefix) + len(sample) - 1 + sample_bytes
        return b"\x0a" + varint(series_bytes) + prefix + sample


def _samples(group: _Group, frame: SeriesFrame, tail: bytes) -> list[bytes]:
    values, heads = frame.values, group.heads
    if not group.present.all():
        values, heads = values[group.present], list(compress(heads, group.present.tolist()))
    packed = values.astype("<f8").tobytes()
    places = range(0, len(packed), _VALUE_BYTES)
    return [
        head + packed[place : place + _VALUE_BYTES] + tail for head, place in zip(heads, places, strict=True)
    ]


def _ended(old: _Group, new: _Group) -> Iterable[bytes]:
    if old.keys is new.keys:
        return compress(old.heads, (old.present & ~new.present).tolist())
    still = set(compress(new.heads, new.present.tolist()))
    return [head for head in compress(old.heads, old.present.tolist()) if head not in still]


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
