"""Whether a file is a complete profile of XLA, with work of a device, and the evidence of its steps."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from perfd.errors import CaptureError
from perfd.trace.model.step_coverage import Recorded, whole_steps
from perfd.trace.model.trace_steps import TraceStep
from perfd.trace.readers.chrome_json import ChromeEvent
from perfd.trace.readers.xplane.plane_events import chrome_events

_DECODED_BYTES = 256 * 1024 * 1024
"""Larger ones are only searched, not decoded: this runs on the training node."""
_DEVICE = re.compile(r"/device:(?:GPU|TPU):\d+")
_DEVICE_MARKS = (b"/device:GPU:", b"/device:TPU:")
_WORK = re.compile(r"Stream #|.*XLA Ops")
_STEP_DIGITS = 16
"""More than any step number has; it bounds the conversion of a hostile profile's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XplaneContents:
    """The content of a complete profile."""

    device_work: bool
    recorded: Recorded | None = None
    """The evidence of steps, of the first device; None for a file that is too large to be decoded here."""


class XplaneCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent needs to know of a complete profile."""

    device_work: bool
    whole_steps: int | None = None
    """None if unknown, or not asked for."""


CHECK_FUNCTION = f"{__name__}:check"
"""For `check_trace`."""
CHECK_DECODER = msgspec.json.Decoder(XplaneCheck)


def check(path: Path, count_steps: bool, step_time_s: float | None) -> XplaneCheck:
    """Check a profile; raises `CaptureError` if it is none, or is cut."""
    found = contents_of(path)
    counted = found.recorded if count_steps else None
    whole = whole_steps(counted, step_time_s) if counted else None
    return XplaneCheck(device_work=found.device_work, whole_steps=whole)


def contents_of(path: Path) -> XplaneContents:
    """The content of the profile; raises `CaptureError` if it is none, or is cut."""
    if path.stat().st_size == 0:
        raise CaptureError("The profile is empty.")
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if path.stat().st_size > _DECODED_BYTES:
            return XplaneContents(device_work=any(content.find(mark) >= 0 for mark in _DEVICE_MARKS))
        return _decoded(chrome_events(memoryview(content)))
    except (ValueError, DecodeError, RecursionError) as error:
        raise CaptureError(f"The profile is not an XLA profile, or it is truncated: {error}.") from error


def _decoded(events: Iterable[ChromeEvent]) -> XplaneContents:
    devices: set[int] = set()
    threads: set[tuple[int, int]] = set()
    busy: int | None = None
    work: list[tuple[int, int, int, str]] = []
    steps: dict[int, TraceStep] = {}
    for event in events:
        name = event.args.name if event.args and event.args.name else ""
        process, thread = int(event.pid or 0), int(event.tid or 0)
        if event.ph == "M":
            if event.name == "process_name" and _DEVICE.search(name):
                devices.add(process)
            elif event.name == "thread_name" and process in devices and _WORK.match(name):
                threads.add((process, thread))
        elif (process, thread) in threads:
            # Of one device: the others do the same.
            busy = process if busy is None else busy
            if process == busy:
                start_ns = round(event.ts * 1000)
                work.append((start_ns, start_ns + round(event.dur * 1000), thread, event.name))
        elif (step := _step(event)) is not None:
            steps[step.number] = step
    work.sort()
    recorded = Recorded(
        starts_ns=[start for start, *_ in work],
        ends_ns=[end for _, end, *_ in work],
        streams=[thread for *_, thread, _ in work],
        names=[name for *_, name in work],
        steps=[step for _, step in sorted(steps.items())],
    )
    return XplaneContents(device_work=bool(work), recorded=recorded)


def _step(event: ChromeEvent) -> TraceStep | None:
    """The step that an annotation of the host (`StepTraceAnnotation`) numbers."""
    number = str(event.args.step_num) if event.args and event.args.step_num is not None else ""
    if not (number.isdecimal() and number.isascii() and len(number) < _STEP_DIGITS):
        return None
    start_ns = round(event.ts * 1000)
    return TraceStep(number=int(number), start_ns=start_ns, end_ns=start_ns + round(event.dur * 1000))
