"""Dumps of PyTorch's flight recorder: a rank's progress on each process group at the time of the dump.

PyTorch writes one file per rank when its NCCL watchdog finds a collective that does not end, or on request:
a pickle, or JSON, of the newest collectives and of each group's state. The files come from untrusted
processes, so they are read as plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from perfd.model import CollectiveProgress
from perfd.safe_pickle import MAX_BYTES, UnsafePickleError, loads

SOURCE = "flight_recorder"
_MAX_JSON_BYTES = 8 << 20
"""JSON takes up to 27 times as much memory once it is decoded (measured with nested empty lists)."""
_MAX_GROUPS = 1024
"""Process groups that are read from a dump; like those below, it bounds memory for untrusted input."""
_MAX_MEMBERS = 65_536
"""Ranks per group; a larger list is ignored."""
_MAX_SEQUENCE = 1 << 62
"""Larger sequence numbers are garbage and would overflow 64 bits."""
_MAX_ENTRIES = 100_000
"""Newest entries that are read; bounds the time per dump."""
_MAX_TEXT_CHARS = 256
"""Longer names are cut."""
_MAX_RANK_DIGITS = 16
"""Characters per rank in a list of ranks given as text, separators included."""
_STATES = ("scheduled", "started", "completed")


class FlightRecorderError(ValueError):
    """The bytes are not a dump that perfd can read; the message gives the reason."""


@dataclass(slots=True)
class _Group:
    name: str
    description: str = ""
    members: tuple[int, ...] = ()
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    operations: dict[int, str] = field(default_factory=dict)
    newest_unix_ns: int = 0


def read_dump(data: bytes, *, job: str, rank: int, read_unix_ns: int) -> list[CollectiveProgress]:
    """A rank's progress on each of its groups; raises `FlightRecorderError` when the data is not a dump.

    `read_unix_ns` replaces times that the dump lacks.
    """
    dump = _content(data)
    groups: dict[str, _Group] = {}
    _take_configurations(_mapping(dump.get("pg_config")), groups)
    entries = dump.get("entries")
    if isinstance(entries, list):
        _take_entries(entries[-_MAX_ENTRIES:], groups)
    _take_status(_mapping(dump.get("pg_status")), groups)
    return [
        CollectiveProgress(
            job=job,
            rank=rank,
            communicator=group.name,
            communicator_name=group.description,
            members=group.members,
            operation=_operation(group),
            enqueued=group.enqueued,
            started=group.started,
            completed=group.completed,
            time_unix_ns=group.newest_unix_ns or read_unix_ns,
            source=SOURCE,
        )
        for group in groups.values()
        if group.enqueued is not None
    ]


def _content(data: bytes) -> Mapping[str, object]:
    if len(data) > MAX_BYTES:
        raise FlightRecorderError(f"it is larger than {MAX_BYTES >> 20} MiB")
    is_json = data.lstrip()[:1] == b"{"
    if is_json and len(data) > _MAX_JSON_BYTES:
        raise FlightRecorderError(f"as JSON it is larger than {_MAX_JSON_BYTES >> 20} MiB")
    try:
        content: object = msgspec.json.decode(data) if is_json else loads(data)
    except UnsafePickleError as error:
        raise FlightRecorderError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FlightRecorderError(f"it is damaged ({error})") from error
    if not isinstance(content, dict) or not {"entries", "pg_status"} & content.keys():
        raise FlightRecorderError("it has neither entries nor the state of a group")
    return content


def _take_configurations(configurations: Mapping[str, object], groups: dict[str, _Group]) -> None:
    for key, value in configurations.items():
        configuration = _mapping(value)
        group = _group(groups, _text(configuration.get("name")) or key)
        if group is not None:
            group.description = _text(configuration.get("desc"))
            group.members = _members(configuration.get("ranks"))


def _take_status(statuses: Mapping[str, object], groups: dict[str, _Group]) -> None:
    """Apply each group's own state, which may be newer than its entries: those are in a ring buffer."""
    for key, value in statuses.items():
        group = _group(groups, key)
        if group is None:
            continue
        status = _mapping(value)
        for name in ("enqueued", "started", "completed"):
            sequence = _sequence(status.get(f"last_{name}_collective"))
            if sequence is not None:
                setattr(group, name, sequence)


def _take_entries(entries: Iterable[object], groups: dict[str, _Group]) -> None:
    for value in entries:
        entry = _mapping(value)
        sequence = _sequence(entry.get("collective_seq_id"))
        name, description = _process_group(entry)
        state = entry.get("state")
        group = _group(groups, name) if name and sequence is not None and state in _STATES else None
        if group is None or sequence is None or entry.get("is_p2p") is True:
            continue
        group.description = group.description or description
        group.operations[sequence] = _text(entry.get("profiling_name")).removeprefix("nccl:")
        group.enqueued = max(sequence, group.enqueued or 0)
        if state != "scheduled":
            group.started = max(sequence, group.started or 0)
        if state == "completed":
            group.completed = max(sequence, group.completed or 0)
        for time in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
            group.newest_unix_ns = max(group.newest_unix_ns, _sequence(entry.get(time)) or 0)


def _operation(group: _Group) -> str:
    """Name of the oldest incomplete operation, else of the newest one."""
    sequence = group.enqueued if group.completed is None else min(group.completed + 1, group.enqueued or 0)
    return group.operations.get(sequence or 0, "")


def _process_group(entry: Mapping[str, object]) -> tuple[str, str]:
    """Name and description of an entry's group; older PyTorch versions give only its number."""
    named = entry.get("process_group")
    if isinstance(named, list | tuple) and len(named) == 2:
        return _text(named[0]), _text(named[1])
    number = _sequence(entry.get("pg_id"))
    return ("", "") if number is None else (str(number), "")


def _group(groups: dict[str, _Group], name: str) -> _Group | None:
    if name not in groups:
        if not name or len(groups) >= _MAX_GROUPS:
            return None
        groups[name] = _Group(name)
    return groups[name]


def _members(ranks: object) -> tuple[int, ...]:
    """The ranks of a group, given as a list or as its JSON text."""
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks[: _MAX_RANK_DIGITS * _MAX_MEMBERS])
        except (ValueError, RecursionError):
            return ()
    if not isinstance(ranks, list | tuple) or len(ranks) > _MAX_MEMBERS:
        return ()
    return tuple(rank for rank in ranks if type(rank) is int and 0 <= rank < 1 << 31)


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        return {}
    # Python refuses to convert integers of thousands of digits to text.
    named = ((key if isinstance(key, str) else _sequence(key), item) for key, item in value.items())
    return {str(key)[:_MAX_TEXT_CHARS]: item for key, item in named if key is not None}


def _sequence(value: object) -> int | None:
    # Groups without operations have -1.
    return value if type(value) is int and 0 <= value < _MAX_SEQUENCE else None


def _text(value: object) -> str:
    return value[:_MAX_TEXT_CHARS] if isinstance(value, str) else ""
