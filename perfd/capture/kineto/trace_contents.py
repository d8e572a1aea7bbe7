"""Whether a file is a complete Kineto trace, whether it has GPU work, and the evidence of its steps."""

from __future__ import annotations

import mmap
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from perfd.errors import CaptureError, TraceError
from perfd.trace.model.step_coverage import Recorded, Span, whole_steps
from perfd.trace.model.trace_steps import PROFILER_STEP, steps_among
from perfd.trace.readers.chrome_json import ChromeEvent, ChromeFile, list_ends, members_behind

_DECODED_BYTES = 256 * 1024 * 1024
"""Larger ones are only searched, not decoded: this runs on the training node."""
_TAIL_BYTES = 4 * 1024 * 1024
"""The process groups of a large job come after the events."""
_MAX_TIME_US, _MAX_DURATION_US = 4e15, 1e14
"""The year 2096, and three years: later or longer times are invalid."""
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_MARKS = tuple(f'"cat": "{name}"'.encode() for name in _GPU_CATEGORIES)
_UPDATE = "Optimizer.step#"
"""The range that PyTorch puts around each `step` of an optimizer."""
_MODEL = re.compile(r"aten::(?:add|b)?mm|aten::(?:matmul|linear)|aten::.*(?:conv|attention)")
"""Operators of forward and backward passes that optimizers almost never use."""


class TraceWork(Enum):
    """What is in a trace."""

    GPU = "gpu"
    """Kernels or copies."""
    HOST = "host"
    """Only what the host did."""
    NONE = "none"
    """Nothing, as from a process that is still importing PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The content of a complete trace."""

    work: TraceWork
    recorded: Recorded | None = None
    """The evidence of its steps; None for a trace that is too large to be decoded here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """A named and timed entry of the trace."""

    name: str
    start_ns: int
    end_ns: int


class TraceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent needs to know of a complete trace."""

    work: TraceWork
    whole_steps: int | None = None
    """None if unknown, or not asked for."""


CHECK_FUNCTION = f"{__name__}:check"
"""For `check_trace`."""
CHECK_DECODER = msgspec.json.Decoder(TraceCheck)


def check(path: Path, count_steps: bool, step_time_s: float | None) -> TraceCheck:
    """Check a trace; raises `CaptureError` if it is incomplete."""
    found = contents_of(path)
    counted = found.recorded if count_steps else None
    return TraceCheck(work=found.work, whole_steps=whole_steps(counted, step_time_s) if counted else None)


def contents_of(path: Path) -> Contents:
    """The content of the trace; raises `CaptureError` if it is incomplete."""
    if path.stat().st_size == 0:
        raise CaptureError("The trace is empty.")
    if path.stat().st_size > _DECODED_BYTES:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _looked_at(content)
    trace = _Trace()
    try:
        for piece in ChromeFile(path).pieces():
            for event in piece:
                trace.add(event)
    except TraceError as error:
        raise CaptureError(f"The trace is incomplete: {error}") from error
    return trace.contents()


def _looked_at(content: mmap.mmap) -> Contents:
    """The list of events of a complete trace is followed by other fields and the end of the object."""
    tail = content[-_TAIL_BYTES:]
    if all(members_behind(tail[end + 1 :]) is None for end in list_ends(tail)):
        raise CaptureError("The trace is incomplete: its end is missing.")
    # One so large is not empty.
    return Contents(work=TraceWork.GPU if any(content.find(mark) >= 0 for mark in _MARKS) else TraceWork.HOST)


class _Trace:
    """Takes the events one by one, and keeps the evidence of steps."""

    def __init__(self) -> None:
        self._categories: set[str] = set()
        self._kernels: list[_Range] = []
        self._streams: dict[int | str | None, int] = {}
        self._of_stream: list[int] = []
        self._annotations: list[_Range] = []
        self._model_ns: list[int] = []
        self._captured_ns: tuple[int, int] | None = None

    def add(self, event: ChromeEvent) -> None:
        """Take one event."""
        category = event.cat or ""
        self._categories.add(category)
        if not (abs(event.ts) < _MAX_TIME_US and 0 <= event.dur < _MAX_DURATION_US):
            return
        if category == "kernel":
            self._kernels.append(_range(event))
            self._of_stream.append(self._streams.setdefault(event.tid, len(self._streams)))
        elif category == "user_annotation":
            self._annotations.append(_range(event))
        elif category == "cpu_op" and _MODEL.match(event.name):
            self._model_ns.append(_range(event).start_ns)
        elif category == "Trace" and event.name.startswith("PyTorch Profiler"):
            span = _range(event)
            self._captured_ns = (span.start_ns, span.end_ns)

    def contents(self) -> Contents:
        """The content of the trace."""
        named = self._categories - {""}
        gpu = not named.isdisjoint(_GPU_CATEGORIES)
        order = sorted(range(len(self._kernels)), key=lambda at: self._kernels[at].start_ns)
        kernels = [self._kernels[at] for at in order]
        recorded = Recorded(
            starts_ns=[one.start_ns for one in kernels],
            ends_ns=[one.end_ns for one in kernels],
            streams=[self._of_stream[at] for at in order],
            names=[one.name for one in kernels],
            steps=steps_among(self._annotations, PROFILER_STEP),
            updates=self._updates(),
            captured_ns=self._captured_ns,
        )
        return Contents(
            work=TraceWork.GPU if gpu else TraceWork.HOST if named else TraceWork.NONE,
            recorded=recorded,
        )

    def _updates(self) -> Sequence[Span]:
        """When the host updated the weights: calls of optimizers without a part of the model between them."""
        self._model_ns.sort()
        calls = sorted(
            (one.start_ns, one.end_ns) for one in self._annotations if one.name.startswith(_UPDATE)
        )
        spans: list[Span] = []
        for start_ns, end_ns in calls:
            if spans and self._model_ns and not self._model_between(spans[-1].end_ns, start_ns):
                spans[-1] = Span(start_ns=spans[-1].start_ns, end_ns=max(end_ns, spans[-1].end_ns))
            else:
                spans.append(Span(start_ns=start_ns, end_ns=end_ns))
        return spans

    def _model_between(self, start_ns: int, end_ns: int) -> bool:
        return bisect_left(self._model_ns, start_ns) < bisect_left(self._model_ns, end_ns)


def _range(event: ChromeEvent) -> _Range:
    start_ns = round(event.ts * 1000)
    return _Range(name=event.name, start_ns=start_ns, end_ns=start_ns + round(event.dur * 1000))
