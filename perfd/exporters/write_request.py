"""Bodies of Prometheus' remote write 1.0, made from frames with the bytes of labels kept.

https://prometheus.io/docs/specs/prw/remote_write_spec/: a `WriteRequest` of protobuf whose series have
sorted labels, with the name as `__name__`, compressed as one snappy block.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfd.series import SeriesFrame, SeriesKey

_STALE_MARKER = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN that ends a series: `StaleNaN` of Prometheus' model/value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One request, not compressed yet."""

    data: bytes
    samples: int


class FrameEncoder:
    """Turns frames into bodies. Keeps the bytes of all labels while a group's keys stay the same object.

    A series that was in the last frame of its group and is absent from this one is ended with a stale
    marker, as Prometheus does with a target's series.
    """

    def __init__(self, external_labels: Mapping[str, str], max_samples: int) -> None:
        self._external = dict(external_labels)
        self._max_samples = max_samples
        self._groups: dict[str, _Group] = {}

    def encode(self, frames: Mapping[str, SeriesFrame]) -> Iterator[Body]:
        """Bodies with the newest values; a frame that is not newer than its group's last adds nothing."""
        samples: list[bytes] = []
        for name, frame in frames.items():
            group = self._groups.get(name)
            if group is not None and frame.time_unix_s <= group.time_unix_s:
                continue
            self._groups[name] = new = self._group(group, frame)
            samples += _samples(new, frame)
            if group is not None:
                samples += _ended(group, new, frame.time_unix_s)
        for start in range(0, len(samples), self._max_samples):
            chunk = samples[start : start + self._max_samples]
            yield Body(data=b"".join(chunk), samples=len(chunk))

    def _group(self, old: _Group | None, frame: SeriesFrame) -> _Group:
        if old is not None and old.keys is frame.keys:
            prefixes = old.prefixes
        else:
            known = {} if old is None else dict(zip(old.keys, old.prefixes, strict=True))
            prefixes = [known.get(key) or self._prefix(key) for key in frame.keys]
        present = frozenset(
            prefix
            for prefix, value in zip(prefixes, frame.values.tolist(), strict=True)
            if not math.isnan(value)
        )
        return _Group(frame.time_unix_s, frame.keys, prefixes, present)

    def _prefix(self, key: SeriesKey) -> bytes:
        labels = {**self._external, **dict(key.labels), "__name__": key.name}
        return b"".join(
            _field(1, _field(1, name.encode()) + _field(2, value.encode()))
            for name, value in sorted(labels.items())
        )


@dataclass(frozen=True, slots=True)
class _Group:
    time_unix_s: float
    keys: Sequence[SeriesKey]
    prefixes: Sequence[bytes]
    present: frozenset[bytes]
    """The prefixes of the series that have a value."""


def _samples(group: _Group, frame: SeriesFrame) -> list[bytes]:
    tail = _timestamp(frame.time_unix_s)
    pack = struct.Struct("<d").pack
    return [
        _series(prefix, pack(value), tail)
        for prefix, value in zip(group.prefixes, frame.values.tolist(), strict=True)
        if not math.isnan(value)
    ]


def _ended(old: _Group, new: _Group, time_unix_s: float) -> Iterable[bytes]:
    tail = _timestamp(time_unix_s)
    return [_series(prefix, _STALE_MARKER, tail) for prefix in sorted(old.present - new.present)]


def _series(prefix: bytes, value: bytes, tail: bytes) -> bytes:
    # TimeSeries: labels (1) and one sample (2) of a double (1, wire type 1) and a time (2, varint).
    sample = b"\x09" + value + tail
    return _field(1, prefix + _field(2, sample))


def _timestamp(time_unix_s: float) -> bytes:
    return b"\x10" + _varint(round(time_unix_s * 1000))


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "little")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
