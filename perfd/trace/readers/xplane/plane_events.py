"""The events of an XSpace of XLA's profiler: planes (devices, host) with lines (streams, threads) of events.

Memory grows with the longest line, not with the file. Without numpy, for agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from perfd.trace.readers.chrome_json import DEVICE_NAME, Args, ChromeEvent
from perfd.trace.readers.xplane import xplane_pb2 as pb
from perfd.trace.readers.xplane.message_fields import fields, submessages

_PLANE = 1
"""The field of an XSpace."""
_NAME, _LINE, _EVENT_METADATA, _STAT_METADATA, _STAT = 2, 3, 4, 5, 6
"""Fields of an XPlane."""
_TIMESTAMP = 3
"""Field of an XLine, in nanoseconds."""
_TASK, _STARTED = b"Task Environment", "profile_start_time"
_WALL_TIME_NS, _MAX_TIME_NS = 10**18, 1 << 62
"""Nanoseconds since 1970 in 2001; fewer are since the start of a profile."""
_PS_PER_US = 1_000_000
"""XPlanes have picoseconds, events of a trace microseconds."""
_NS_PER_US = 1_000
"""Lines begin at a time in nanoseconds."""
_DEVICE_NAMES = ("gpu_device_name", "device_type_string")
"""Of a GPU and of a TPU, in the order in which they are looked for."""
_USED = frozenset({"hlo_op", "hlo_module", "hlo_category", "correlation_id", "step_num", *_DEVICE_NAMES})

_Value = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    name: str
    lines: list[memoryview]
    names: Mapping[int, str]
    """Of events, by their metadata's id."""
    stats_of_names: Mapping[int, Mapping[str, _Value]]
    """What all events of a name have in common, by the same id."""
    stat_names: Mapping[int, str]
    device: str | None
    """Its product name."""


def chrome_events(space: memoryview) -> Iterator[ChromeEvent]:
    """The events as in the Chrome trace that XLA's profiler makes of them: a process is a plane.

    Times are microseconds since the first line. Raises `ValueError` or protobuf's `DecodeError`.
    """
    base_ns: int | None = None
    for number, plane in enumerate([_plane(part) for field, part in submessages(space) if field == _PLANE]):
        yield ChromeEvent(ph="M", name="process_name", pid=number, args=Args(name=plane.name))
        if plane.device:
            yield ChromeEvent(ph="M", name=DEVICE_NAME, pid=number, args=Args(name=plane.device))
        for thread, part in enumerate(plane.lines):
            line = pb.XLine.FromString(bytes(part))
            # Microseconds since the first line, since those since 1970 would lose their nanoseconds.
            base_ns = line.timestamp_ns if base_ns is None else base_ns
            yield from _events(plane, line, base_ns, number, thread)


def clock_zero_unix_ns(space: memoryview) -> int | None:
    """The wall time from which `chrome_events` counts; None if the file does not have it.

    Times of lines are those since the start of the profile, whose wall time the plane of the task has, and in
    older files wall times.
    """
    zero: int | None = None
    started: int | None = None
    for field, part in submessages(space):
        if field != _PLANE:
            continue
        line = next((value for number, value in submessages(part) if number == _LINE), None)
        if zero is None and line is not None:
            at = next((value for number, value in fields(line) if number == _TIMESTAMP), 0)
            zero = at if isinstance(at, int) else None
        elif line is None and started is None:
            started = _started_ns(part)
    if zero is None or zero >= _WALL_TIME_NS:
        return zero if zero is not None and zero < _MAX_TIME_NS else None
    return None if started is None else zero + started


def _started_ns(plane: memoryview) -> int | None:
    names: dict[int, str] = {}
    values: dict[int, int] = {}
    for number, part in submessages(plane):
        if number == _NAME and bytes(part) != _TASK:
            return None
        if number == _STAT_METADATA:
            stat = pb.StatMetadataEntry.FromString(bytes(part))
            names[stat.key] = stat.value.name
        elif number == _STAT:
            own = pb.XStat.FromString(bytes(part))
            values[own.metadata_id] = own.uint64_value or own.int64_value
    found = next((values[key] for key, name in names.items() if name == _STARTED and key in values), 0)
    return found if _WALL_TIME_NS <= found < _MAX_TIME_NS else None


def _plane(message: memoryview) -> _Plane:
    name, lines = "", []
    names: dict[int, str] = {}
    stats: dict[int, list[pb.XStat]] = {}
    stat_names: dict[int, str] = {}
    own: list[pb.XStat] = []
    for number, part in submessages(message):
        if number == _NAME:
            name = bytes(part).decode("utf-8", "replace")
        elif number == _LINE:
            lines.append(part)
        elif number == _EVENT_METADATA:
            event = pb.EventMetadataEntry.FromString(bytes(part))
            names[event.key] = event.value.display_name or event.value.name
            stats[event.key] = list(event.value.stats)
        elif number == _STAT_METADATA:
            stat = pb.StatMetadataEntry.FromString(bytes(part))
            stat_names[stat.key] = stat.value.name
        elif number == _STAT:
            own.append(pb.XStat.FromString(bytes(part)))
    said = _values(own, stat_names)
    return _Plane(
        name=name,
        lines=lines,
        names=names,
        stats_of_names={key: _values(found, stat_names) for key, found in stats.items()},
        stat_names=stat_names,
        device=next((text for key in _DEVICE_NAMES if (text := _text(said.get(key)))), None),
    )


def _events(plane: _Plane, line: pb.XLine, base_ns: int, process: int, thread: int) -> Iterator[ChromeEvent]:
    yield ChromeEvent(ph="M", name="thread_name", pid=process, tid=thread, args=Args(name=line.name))
    start_us = (line.timestamp_ns - base_ns) / _NS_PER_US
    for event in line.events:
        if event.WhichOneof("data") == "num_occurrences":
            continue
        values = {**plane.stats_of_names.get(event.metadata_id, {}), **_values(event.stats, plane.stat_names)}
        yield ChromeEvent(
            ph="X",
            name=plane.names.get(event.metadata_id, ""),
            ts=start_us + event.offset_ps / _PS_PER_US,
            dur=event.duration_ps / _PS_PER_US,
            pid=process,
            tid=thread,
            args=Args(
                hlo_op=_text(values.get("hlo_op")),
                hlo_module=_text(values.get("hlo_module")),
                hlo_category=_text(values.get("hlo_category")),
                correlation_id=values.get("correlation_id"),
                step_num=values.get("step_num"),
            ),
        )


def _values(stats: Iterable[pb.XStat], names: Mapping[int, str]) -> dict[str, _Value]:
    found: dict[str, _Value] = {}
    for stat in stats:
        name = names.get(stat.metadata_id, "")
        kind = stat.WhichOneof("value") if name in _USED else None
        if kind is not None:
            value = getattr(stat, kind)
            found[name] = names.get(value, "") if kind == "ref_value" else value
    return found


def _text(value: _Value | None) -> str | None:
    return value if isinstance(value, str) else None
