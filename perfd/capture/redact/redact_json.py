"""Copies of JSON artifacts that may leave the node: Kineto's traces, and py-spy's stacks.

Only content known to be harmless is copied, as for exports of nsys: what a program or a later version adds
is not. A trace keeps its events, which have no environment, arguments, output or other processes; fields
that programs add (`torch.profiler.profile.add_metadata`) are dropped.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import msgspec

from perfd.errors import CaptureError

_TRACE_FIELDS = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "baseTimeNanosecond",
    "trace_id",
    "cuda_driver_version",
    "cuda_runtime_version",
    "cupti_version",
    "hip_driver_version",
    "hip_runtime_version",
    "with_flops",
    "with_modules",
    "with_stack",
    "record_shapes",
    "profile_memory",
    "traceEvents",
)


class _Frame(msgspec.Struct):
    name: str
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct):
    """The kept fields of py-spy's output, without arguments, local variables and parents."""

    pid: int
    thread_id: int
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool | None = None
    owns_gil: bool | None = None


def redact_trace(source: Path, target: Path) -> None:
    """Write the harmless part of a Kineto trace into `target`, which exists.

    The events are copied unchanged and never become objects, so that a large trace costs little. Raises
    `CaptureError` if the source is not a trace.
    """
    try:
        with source.open("rb") as file:
            # Not closed by hand: the fields point into it, and the traceback of an error holds them.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (ValueError, OSError, RecursionError, msgspec.DecodeError) as error:
        raise CaptureError(f"{source} is not a Kineto trace: {error}.") from error
    if "traceEvents" not in fields:
        raise CaptureError(f"{source} is not a Kineto trace: it has no traceEvents.")
    _write(target, {name: fields[name] for name in _TRACE_FIELDS if name in fields})


def redact_stacks(source: Path, target: Path) -> None:
    """Write the harmless part of py-spy's stacks into `target`, which exists; raises `CaptureError`."""
    try:
        threads = msgspec.json.decode(source.read_bytes(), type=list[_Thread])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaptureError(f"{source} has no py-spy stacks: {error}.") from error
    target.write_bytes(msgspec.json.encode(threads))


def _write(target: Path, fields: dict[str, msgspec.Raw]) -> None:
    with target.open("wb") as out:
        begin = b"{"
        for name, value in fields.items():
            out.write(begin + msgspec.json.encode(name) + b": ")
            out.write(memoryview(value))
            begin = b",\n"
        out.write(b"}\n")
