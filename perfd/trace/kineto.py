"""Reads PyTorch's (Kineto's) and other Chrome-format traces, of every shape they had since 2021.

The file is decoded in pieces, so memory grows with the operations that are kept and not with the file.
"""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from perfd.errors import TraceError
from perfd.trace.classify import call_kind, kernel_kind
from perfd.trace.model import Collective, Kind, RankTrace, Step, calls_of, operations_of

PIECE_BYTES = 16 * 1024 * 1024
MAX_EVENT_BYTES = 64 * 1024 * 1024
_GPU_CATEGORIES = {
    "kernel": None,
    "gpu_memcpy": Kind.MEMORY,
    "gpu_memset": Kind.MEMORY,
    "memcpy": Kind.MEMORY,
    "memset": Kind.MEMORY,
}
_CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
_STEP = re.compile(r"ProfilerStep#?(\d+)")
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_DTYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "double", "complexfloat"), 8),
}


class _Args(msgspec.Struct):
    """What is used of an event's `args`; numbers were strings in some versions."""

    correlation: int | str | None = None
    stream: int | str | None = None
    device: int | str | None = None
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


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class _Device(msgspec.Struct):
    id: int = 0
    name: str | None = None


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _Head(msgspec.Struct, rename="camel"):
    device_properties: list[_Device] = []
    distributed_info: _Distributed | None = None
    base_time_nanoseconds: int | None = None


_decode_events = msgspec.json.Decoder(list[_Event], strict=False).decode
_decode_loose = msgspec.json.Decoder(list[dict[str, Any]]).decode


def read(path: Path) -> RankTrace:
    """The one rank that the file is about.

    Raises `TraceError`, naming the file, when it is no such trace, is cut, or holds no GPU operation.
    """
    builder = _Builder(path)
    try:
        with _open(path) as file:
            for piece in _pieces(path, file, builder):
                for event in piece:
                    builder.add(event)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the compressed file is cut or damaged: {error}.") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
    return builder.trace()


def _open(path: Path) -> BinaryIO:
    file = path.open("rb")
    magic = file.read(2)
    file.seek(0)
    if magic == b"\x1f\x8b":
        file.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]  # It reads bytes like any other.
    return file


def _pieces(path: Path, file: BinaryIO, builder: _Builder) -> Iterator[list[_Event]]:
    """Lists of events, and through `builder` what stands around them in the file."""
    buffer = file.read(PIECE_BYTES)
    start, prefix = _events_start(path, buffer)
    rest = buffer[start:]
    while True:
        more = file.read(PIECE_BYTES)
        if not more:
            break
        rest += more
        cut = _last_boundary(rest)
        if cut is None:
            if len(rest) > MAX_EVENT_BYTES:
                raise TraceError(
                    f"{path}: one event is larger than {MAX_EVENT_BYTES} bytes; this is no trace."
                )
            continue
        yield _decode(path, b"[" + rest[: cut[0]] + b"]")
        rest = rest[cut[1] :]
    end, suffix = _events_end(path, rest)
    builder.head(path, prefix, suffix)
    if rest[:end].strip():
        yield _decode(path, b"[" + rest[:end] + b"]")


def _events_start(path: Path, buffer: bytes) -> tuple[int, bytes]:
    """Where the first event begins, and what stands before the list."""
    if buffer.lstrip()[:1] == b"[":
        return buffer.index(b"[") + 1, b"{"
    found = re.search(rb'"traceEvents"\s*:\s*\[', buffer)
    if buffer.lstrip()[:1] != b"{" or not found:
        raise TraceError(f'{path}: this is no Chrome-format trace: it has no "traceEvents" list.')
    return found.end(), buffer[: found.start()]


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """The last place between two events: ends of the first, begin of the second.

    An event's `args` holds no list of objects in any version, so `}, {` is between events.
    """
    tail = max(0, len(buffer) - 1024 * 1024)
    while True:
        last = None
        for match in _BOUNDARY.finditer(buffer, tail):
            last = match
        if last is not None:
            return last.start() + 1, last.end()
        if tail == 0:
            return None
        tail = 0


def _events_end(path: Path, buffer: bytes) -> tuple[int, bytes]:
    """Where the list of events ends, and what stands behind it."""
    search_from = len(buffer)
    while (end := buffer.rfind(b"]", 0, search_from)) >= 0:
        suffix = buffer[end + 1 :].strip()
        if suffix in (b"", b"}") or suffix.startswith(b","):
            candidate = b"{" + suffix.removeprefix(b",") if suffix.startswith(b",") else b"{}"
            try:
                msgspec.json.decode(candidate)
            except msgspec.DecodeError:
                search_from = end
                continue
            return end, candidate
        search_from = end
    raise TraceError(f"{path}: the trace is cut: its list of events does not end.")


def _decode(path: Path, data: bytes) -> list[_Event]:
    try:
        return _decode_events(data)
    except msgspec.ValidationError:
        return [event for event in map(_loosely, _decode_any(path, data)) if event is not None]
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: the trace is damaged: {error}.") from error


def _decode_any(path: Path, data: bytes) -> list[dict[str, Any]]:
    try:
        return _decode_loose(data)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: the trace is damaged: {error}.") from error


def _loosely(raw: dict[str, Any]) -> _Event | None:
    """An event whose fields have types of their own: what does not fit is left out."""
    try:
        return msgspec.convert(raw, _Event, strict=False)
    except msgspec.ValidationError:
        known = {"correlation", "stream", "device"}
        args = raw.get("args")
        slim = {key: value for key, value in args.items() if key in known} if isinstance(args, dict) else None
        try:
            return msgspec.convert({**raw, "args": slim}, _Event, strict=False)
        except msgspec.ValidationError:
            return None


class _Columns:
    def __init__(self, *names: str) -> None:
        self.columns = {name: array("q") for name in names}

    def append(self, *values: int) -> None:
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)


class _Builder:
    """Collects what the events say."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, int] = {}
        self._operations = _Columns("start_ns", "end_ns", "kind", "name", "stream", "correlation", "at")
        self._calls = _Columns("start_ns", "end_ns", "kind", "correlation", "thread")
        self._overhead = _Columns("start_ns", "end_ns")
        self._steps: dict[int, Step] = {}
        self._collectives: list[tuple[int, _Args]] = []
        self._captured: tuple[int, int] | None = None
        self._devices: set[int] = set()
        self._head = _Head()
        self._skipped = 0

    def head(self, path: Path, prefix: bytes, suffix: bytes) -> None:
        """What the file says of the run, before and behind the events."""
        parts = [part for part in (_object(prefix), _object(suffix)) if part]
        merged: dict[str, Any] = {}
        for part in parts:
            merged.update(part)
        try:
            self._head = msgspec.convert(merged, _Head, strict=False)
        except msgspec.ValidationError as error:
            raise TraceError(
                f"{path}: its description of the run is not as any version writes it: {error}."
            ) from error

    def add(self, event: _Event) -> None:
        if event.ph != "X" or event.cat is None:
            return
        category = event.cat.lower()
        start_ns = round(event.ts * 1000)
        end_ns = start_ns + round(event.dur * 1000)
        if category in _GPU_CATEGORIES:
            self._add_operation(event, category, start_ns, end_ns)
        elif category in _CALL_CATEGORIES:
            correlation = _number(event.args.correlation) if event.args else -1
            self._calls.append(
                start_ns, end_ns, call_kind(event.name), correlation, hash(event.tid) & 0x7FFFFFFFFFFF
            )
        elif category == "user_annotation" or (
            category == "cpu_op" and event.name.startswith("ProfilerStep")
        ):
            if found := _STEP.fullmatch(event.name):
                number = int(found[1])
                self._steps[number] = Step(number=number, start_ns=start_ns, end_ns=end_ns)
        elif category == "overhead":
            self._overhead.append(start_ns, end_ns)
        elif category == "trace" and event.name.startswith("PyTorch Profiler"):
            self._captured = (start_ns, end_ns)

    def _add_operation(self, event: _Event, category: str, start_ns: int, end_ns: int) -> None:
        if end_ns < start_ns:
            self._skipped += 1
            return
        args = event.args or _Args()
        kind = _GPU_CATEGORIES[category]
        if kind is None:
            kind = kernel_kind(event.name)
        at = len(self._operations.columns["start_ns"])
        if kind == Kind.COMMUNICATION and args.collective:
            self._collectives.append((at, args))
        name = self._names.setdefault(event.name, len(self._names))
        stream = _number(args.stream if args.stream is not None else event.tid)
        self._operations.append(start_ns, end_ns, kind, name, stream, _number(args.correlation), at)
        device = _number(args.device if args.device is not None else event.pid)
        if device >= 0:
            self._devices.add(device)

    def trace(self) -> RankTrace:
        columns = self._operations.columns
        if not len(columns["start_ns"]):
            raise TraceError(
                f"{self._path}: the trace has no GPU operation; was CUDA activity on, and did the GPU work?"
            )
        operations = operations_of(columns)
        order = sorted(range(len(columns["start_ns"])), key=columns["start_ns"].__getitem__)
        place = {original: position for position, original in enumerate(order)} if self._collectives else {}
        device = next(iter(self._devices)) if len(self._devices) == 1 else None
        notes = (
            [f"{self._skipped} operations end before they begin and are left out."] if self._skipped else []
        )
        return RankTrace(
            file=str(self._path),
            rank=self._head.distributed_info.rank if self._head.distributed_info else None,
            gpu=next((d.name for d in self._head.device_properties if d.id == device), None),
            device=device,
            names=list(self._names),
            operations=operations,
            calls=calls_of(self._calls.columns),
            steps=[self._steps[number] for number in sorted(self._steps)],
            collectives=[_collective(place[at], args) for at, args in self._collectives],
            captured_ns=self._captured,
            epoch_ns=self._head.base_time_nanoseconds,
            notes=notes,
        )


def _object(text: bytes) -> dict[str, Any]:
    body = text.strip().rstrip(b",")
    if not body.endswith(b"}") or body == b"{":
        body += b"}"
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _collective(operation: int, args: _Args) -> Collective:
    elements = max(args.elements_in or 0, args.elements_out or 0)
    width = _DTYPE_BYTES.get((args.dtype or "").lower())
    ranks = args.group_ranks or ""
    return Collective(
        operation=operation,
        name=args.collective or "",
        group=args.group_description or args.group or "",
        group_ranks=() if "..." in ranks else tuple(int(number) for number in re.findall(r"\d+", ranks)),
        sequence=args.sequence,
        size_bytes=elements * width if width and elements else None,
        peer=args.destination
        if args.collective == "send"
        else args.source
        if args.collective == "recv"
        else None,
    )


def _number(value: int | str | None) -> int:
    if isinstance(value, int):
        return value
    return int(value) if value is not None and value.lstrip("-").isdigit() else -1
