"""Makes copies of JSON artefacts that may leave the node: of Kineto's traces, and of py-spy's stacks.

What is copied is a list of what is known to be harmless, as with exports of nsys: what a program or a later
version adds stays behind. A trace keeps its events, which hold no environment, arguments, output or other
processes; programs add fields of their own beside them (`torch.profiler.profile.add_metadata`).
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
    """What is kept of py-spy's; its arguments, local variables and parents are not."""

    pid: int
    thread_id: int
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool | None = None
    owns_gil: bool | None = None


def redact_trace(source: Path, target: Path) -> None:
    """Write what may leave of a Kineto trace into `target`, which exists.

    The events are copied as they are and never held as objects, so that a large trace costs little. Raises
    `CaptureError` when the source is no trace.
    """
    try:
        with source.open("rb") as file:
            # Not closed by hand: the fields point into it, and the traceback of an error holds them.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (ValueError, msgspec.DecodeError) as error:
        raise CaptureError(f"{source} is no trace of Kineto: {error}.") from error
    if "traceEvents" not in fields:
        raise CaptureError(f"{source} is no trace of Kineto: it has no traceEvents.")
    _write(target, {name: fields[name] for name in _TRACE_FIELDS if name in fields})


def redact_stacks(source: Path, target: Path) -> None:
    """Write what may leave of py-spy's stacks into `target`, which exists; raises `CaptureError`."""
    try:
        threads = msgspec.json.decode(source.read_bytes(), type=list[_Thread])
    except msgspec.DecodeError as error:
        raise CaptureError(f"{source} holds no stacks of py-spy: {error}.") from error
    target.write_bytes(msgspec.json.encode(threads))


def _write(target: Path, fields: dict[str, msgspec.Raw]) -> None:
    with target.open("wb") as out:
        begin = b"{"
        for name, value in fields.items():
            out.write(begin + msgspec.json.encode(name) + b": ")
            out.write(memoryview(value))
            begin = b",\n"
        out.write(b"}\n")
