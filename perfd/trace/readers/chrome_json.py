"""Reads Chrome-format traces in pieces, so that memory does not grow with the file.

The format is a list of events, alone or as `traceEvents` of an object that also describes the run.
(Source: "Trace Event Format", Google; PyTorch's and JAX's profilers write it, often gzip-compressed.)
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from perfd.errors import TraceError

PIECE_BYTES = 8 * 1024 * 1024
"""Of a file that is read at a time, which bounds memory. Chosen."""
_HEAD_BYTES = 8 * 1024 * 1024
"""What stands before the events of a job of thousands of groups."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""What a hostile file may keep in memory; real events with deep call stacks have kilobytes."""
# Within a string a quote is escaped, and after a string that ends in `},{` no key can follow: so this is
# between two events. No version of any profiler puts a list of objects into an event.
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"\w+\"\s*:)")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LIST_END = re.compile(rb"(?:\A|[}\[])\s*\]")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


class Args(msgspec.Struct, gc=False):
    """What is used of an event's `args`; numbers were strings in some versions."""

    correlation: int | str | None = None
    correlation_id: int | str | None = None
    stream: int | str | None = None
    device: int | str | None = None
    name: str | None = None
    hlo_op: str | None = None
    hlo_module: str | None = None
    hlo_category: str | None = None
    step_num: int | str | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    group_description: str | None = msgspec.field(default=None, name="Process Group Description")
    group_ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    elements_in: int | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    sequence: int | None = msgspec.field(default=None, name="Seq")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    destination: int | None = msgspec.field(default=None, name="Dst Rank")


DEVICE_NAME = "device_name"
"""Of the event by which the product name of a process' device is handed on; Chrome's traces have none."""


class ChromeEvent(msgspec.Struct, gc=False):
    """One event; times are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


@cache
def _decoder(event_type: type[ChromeEvent]) -> Callable[[bytes], list[ChromeEvent]]:
    # Made once per type, for all files.
    return msgspec.json.Decoder(list[event_type], strict=False).decode  # type: ignore[valid-type]


_decode_loose = msgspec.json.Decoder(list[Any]).decode


class ChromeFile:
    """One file: its events in pieces, and when they are through, what stood around them."""

    def __init__(
        self, path: Path, piece_bytes: int = PIECE_BYTES, event_type: type[ChromeEvent] = ChromeEvent
    ) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._event_type = event_type
        self._decode_events = _decoder(event_type)
        self.head: dict[str, Any] = {}
        """The object's other members; complete only after the last piece."""
        self.malformed_events = 0
        """Events that are not as any version writes them, and were left out."""

    def pieces(self) -> Iterator[list[ChromeEvent]]:
        """Yield all events in the order of the file.

        Raises `TraceError`, naming the file, when it is no such trace, is cut or is damaged.
        """
        try:
            with _open(self._path) as file:
                yield from self._pieces(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(
                f"{self._path}: the compressed file is cut or damaged; copy it again, or capture again."
            ) from error
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be read: {error.strerror or error}.") from error

    def _pieces(self, file: BinaryIO) -> Iterator[list[ChromeEvent]]:
        buffer = file.read(max(self._piece_bytes, _HEAD_BYTES))
        is_object = buffer.lstrip()[:1] == b"{"
        start, prefix = self._events_start(buffer, is_object)
        rest = buffer[start:]
        damage: TraceError | None = None
        while more := file.read(self._piece_bytes):
            rest += more
            cut = None if damage else _last_boundary(rest)
            if cut is not None:
                try:
                    events = self._decode(b"[" + rest[: cut[0]] + b"]")
                except TraceError as error:
                    # The list may end in here, and the boundary be one of a list behind it, as of groups.
                    damage = error
                else:
                    yield events
                    rest = rest[cut[1] :]
            if len(rest) > MAX_EVENT_BYTES:
                raise damage or TraceError(
                    f"{self._path}: one event is larger than {MAX_EVENT_BYTES} bytes; this is not a trace."
                )
        events, suffix = self._ending(rest, is_object)
        self.head = self._prefix_members(prefix) | suffix
        yield events

    def _prefix_members(self, prefix: bytes) -> dict[str, Any]:
        """What stands before the list."""
        try:
            return msgspec.json.decode(prefix.strip().rstrip(b",") + b"}", type=dict[str, Any])
        except _NOT_JSON as error:
            raise self._damaged(error) from error

    def _events_start(self, buffer: bytes, is_object: bool) -> tuple[int, bytes]:
        """Where the first event begins, and what stands before the list."""
        if buffer.lstrip()[:1] == b"[":
            if buffer.lstrip()[1:].lstrip()[:1] not in {b"", b"{", b"]"}:
                raise TraceError(
                    f"{self._path}: not a trace: the list in this JSON is not one of trace events, as a"
                    " memory timeline is."
                )
            return buffer.index(b"[") + 1, b"{"
        if not buffer.strip():
            raise TraceError(f"{self._path}: the file is empty; copy it again, or capture again.")
        if not is_object:
            raise TraceError(
                f"{self._path}: not a trace; perfd reads the JSON of PyTorch's and JAX's profilers,"
                " and what Nsight Systems writes (.nsys-rep, .sqlite)."
            )
        found = _EVENTS.search(buffer)
        if not found:
            raise TraceError(
                f"{self._path}: this JSON is not a trace of PyTorch's or JAX's profiler:"
                ' it has no list "traceEvents".'
            )
        return found.end(), buffer[: found.start()]

    def _ending(self, buffer: bytes, is_object: bool) -> tuple[list[ChromeEvent], dict[str, Any]]:
        """The last events, and the members that stand behind the list of them."""
        problem = TraceError(
            f"{self._path}: the trace is cut: its list of events does not end; copy it again,"
            " or capture again."
        )
        for end in list_ends(buffer):
            members = members_behind(buffer[end + 1 :], is_object)
            if members is None:
                continue
            try:
                return self._decode(b"[" + buffer[:end] + b"]"), members
            except TraceError as error:
                # Maybe it was the end of another list behind that of events, as of Kineto's own log ("INFO").
                problem = error
        raise problem

    def _decode(self, data: bytes) -> list[ChromeEvent]:
        try:
            return self._decode_events(data)
        except msgspec.ValidationError:
            events = [_loosely(raw, self._event_type) for raw in self._decode_any(data)]
            self.malformed_events += events.count(None)
            return [event for event in events if event is not None]
        except _NOT_JSON as error:
            raise self._damaged(error) from error

    def _decode_any(self, data: bytes) -> list[Any]:
        try:
            return _decode_loose(data)
        except _NOT_JSON as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> TraceError:
        return TraceError(
            f"{self._path}: the trace is cut or damaged ({error}); copy it again, or capture again."
        )


def _open(path: Path) -> BinaryIO:
    file = path.open("rb")
    magic = file.read(2)
    file.seek(0)
    if magic == b"\x1f\x8b":
        file.close()
        return cast("BinaryIO", gzip.open(path, "rb"))
    return file


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """The last place between two events: end of the first, begin of the second."""
    tail = max(0, len(buffer) - 65536)
    while True:
        last = None
        for match in _BOUNDARY.finditer(buffer, tail):
            last = match
        if last is not None:
            return last.start() + 1, last.end()
        if tail == 0:
            return None
        tail = 0


def list_ends(buffer: bytes) -> Iterator[int]:
    """Where a list of objects may end, the last place first."""
    return (match.end() - 1 for match in reversed(list(_LIST_END.finditer(buffer))))


def members_behind(suffix: bytes, is_object: bool = True) -> dict[str, Any] | None:
    """The members behind the list of events, where this is all that stands there; None where it is not."""
    suffix = suffix.strip()
    if not is_object:
        return None if suffix else {}
    try:
        return msgspec.json.decode(b"{" + suffix.removeprefix(b","), type=dict[str, Any])
    except _NOT_JSON:
        return None


def _loosely(raw: object, event_type: type[ChromeEvent]) -> ChromeEvent | None:
    """An event whose fields have types of their own: what does not fit is left out."""
    if not isinstance(raw, dict):
        return None
    args = raw.get("args")
    known = {"correlation", "stream", "device", "name"}
    slim = {key: value for key, value in args.items() if key in known} if isinstance(args, dict) else None
    for candidate in (raw, {**raw, "args": slim}, {**raw, "args": None}):
        try:
            return msgspec.convert(candidate, event_type, strict=False)
        except msgspec.ValidationError:
            continue
    return None
