"""Tracks as a trace of Perfetto, which ui.perfetto.dev and trace_processor read.

Source: https://perfetto.dev/docs/reference/synthetic-track-event, and the field numbers of
protos/perfetto/trace in its repository.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from perfd.protobuf_encoding import field, varint
from perfd.sandbox.named_files import refuse_pipe
from perfd.trace.export.tracks import Slice, Track, rows_of

_PACKET = 1
"""Field of `Trace` that holds its packets (perfetto's trace.proto)."""
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
"""Fields of a `TracePacket` (perfetto's trace_packet.proto)."""
_UUID, _NAME, _PROCESS, _PARENT = 1, 2, 3, 5
"""Fields of a `TrackDescriptor`."""
_PID, _PROCESS_NAME = 1, 6
"""Fields of a `ProcessDescriptor`."""
_EVENT_DETAIL, _EVENT_TYPE, _EVENT_NAME, _EVENT_TRACK = 4, 9, 10, 11
"""Fields of a `TrackEvent`."""
_DETAIL_TEXT, _DETAIL_NAME = 6, 10
"""Fields of a `DebugAnnotation`."""
_BEGIN, _END = 1, 2
"""Types of a `TrackEvent`: a slice begins, and ends."""
_STATE_CLEARED, _NEEDS_STATE = 1, 2
"""Flags of a sequence of packets: interned names begin anew, and are needed."""


def write_perfetto(tracks: Iterable[Track], path: Path) -> int:
    """Write the tracks, with gzip if the name ends in `.gz`; returns how many slices.

    Raises `OSError`, or `PerfdError` for a named pipe.
    """
    refuse_pipe(path)
    slices = 0
    with ExitStack() as stack:
        file = stack.enter_context(path.open("wb"))
        write = file.write
        if path.suffix == ".gz":
            write = stack.enter_context(gzip.GzipFile(fileobj=file, mode="wb", compresslevel=3)).write
        for packet, begins in packets(tracks):
            write(field(_PACKET, packet))
            slices += begins
    return slices


def packets(tracks: Iterable[Track]) -> Iterator[tuple[bytes, bool]]:
    """Each packet of the trace, and whether a slice begins with it."""
    uuids = count(1)
    processes: dict[str, int] = {}
    names: dict[str, int] = {}
    yield _number(_FLAGS, _STATE_CLEARED) + _number(_SEQUENCE, 1), False
    for track in tracks:
        if track.process not in processes:
            processes[track.process] = next(uuids)
            process = _number(_PID, len(processes)) + _text(_PROCESS_NAME, track.process)
            yield _descriptor(processes[track.process], field(_PROCESS, process)), False
        for row in rows_of(track.slices):
            uuid = next(uuids)
            parent = _number(_PARENT, processes[track.process])
            yield _descriptor(uuid, _text(_NAME, track.name) + parent), False
            yield from _events(row, uuid, names)


def _events(row: Iterable[Slice], uuid: int, names: dict[str, int]) -> Iterator[tuple[bytes, bool]]:
    ends: list[int] = []
    for one in row:
        while ends and ends[-1] <= one.start_ns:
            yield _event(ends.pop(), _END, uuid), False
        new = one.name not in names
        number = names.setdefault(one.name, len(names) + 1)
        event = _event(one.start_ns, _BEGIN, uuid, _number(_EVENT_NAME, number) + _details(one.details))
        if new:
            event += field(_INTERNED, field(2, _number(1, number) + _text(2, one.name)))
        yield event, True
        ends.append(one.end_ns)
    for end in reversed(ends):
        yield _event(end, _END, uuid), False


def _event(time_ns: int, kind: int, uuid: int, more: bytes = b"") -> bytes:
    event = field(_EVENT, _number(_EVENT_TYPE, kind) + _number(_EVENT_TRACK, uuid) + more)
    return _number(_TIMESTAMP, time_ns) + _number(_SEQUENCE, 1) + _number(_FLAGS, _NEEDS_STATE) + event


def _details(details: Mapping[str, str]) -> bytes:
    return b"".join(
        field(_EVENT_DETAIL, _text(_DETAIL_NAME, name) + _text(_DETAIL_TEXT, text))
        for name, text in details.items()
    )


def _descriptor(uuid: int, more: bytes) -> bytes:
    return _number(_SEQUENCE, 1) + field(_DESCRIPTOR, _number(_UUID, uuid) + more)


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def _text(number: int, text: str) -> bytes:
    return field(number, text.encode("utf-8", "replace"))
