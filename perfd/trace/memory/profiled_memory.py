"""Reads the changes of memory in a trace of PyTorch's profiler: `profile(profile_memory=True)`.

Each `[memory]` event has an address, a size (negative when freed) and what the allocator held after it. A
trace does not say who asked for the memory: that is what the same thread was in at that time, down to the
line of code if the profile was taken with `with_stack=True`. (Source: torch/csrc/autograd/profiler_kineto.cpp
of PyTorch 2.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from perfd.errors import TraceError
from perfd.trace.memory.memory_snapshot import MemoryEvent, Stack, StackFrame
from perfd.trace.model.host_spans import HostSpans, SpanKind
from perfd.trace.readers.chrome_json import ChromeEvent, ChromeFile
from perfd.trace.readers.detailed_events import DetailedEvent, detail_of, whole
from perfd.trace.readers.kineto_columns import Columns, Times
from perfd.trace.readers.kineto_host_spans import HostSpanEvents, code_line

_NAMES = {"[memory]": 0, "[OutOfMemory]": 1}
_HOST_DEVICE_TYPE = 0
"""Of PyTorch's DeviceType: the CPU."""
_MAX_SIZE = 1 << 50
"""Of a block, in bytes; more cannot be memory."""
_MAX_FRAMES = 64
"""Of a call stack, the innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledMemory:
    """One GPU of a trace, with at least one event; the sequences are of one length."""

    device: int
    events: Sequence[MemoryEvent]
    """`alloc`, `free_requested` and `oom`."""
    allocated_bytes: Sequence[int]
    """In use after each event."""
    reserved_bytes: Sequence[int]
    """Held of CUDA after each event."""


def read_profiled_memory(path: Path) -> list[ProfiledMemory]:
    """The GPUs whose memory changes in a trace; raises `TraceError`, naming the file, if there are none."""
    file = ChromeFile(path, event_type=DetailedEvent)
    spans, changes = HostSpanEvents(), _Changes()
    threads: dict[object, int] = {}
    for piece in file.pieces():
        for event in piece:
            if event.cat is None:
                continue
            thread = threads.setdefault(event.tid, len(threads))
            if event.name in _NAMES and event.ph == "i":
                changes.add(event, thread)
            else:
                spans.add(event, thread)
    found = changes.by_device(spans.spans(), spans.has_functions)
    if not found:
        only = " other than of the CPU's" if changes.of_host else ""
        raise TraceError(
            f"{path}: the trace has no changes of memory{only}: record them"
            " (PyTorch's profiler: profile_memory=True, best with with_stack=True)."
        )
    return found


class _Changes:
    """Takes `[memory]` events."""

    def __init__(self) -> None:
        self.of_host = False
        self._times = Times()
        self._columns = Columns("device", "thread", "out", "size", "allocated", "reserved")
        # Addresses of the upper half need all 64 bits.
        self._addresses = array("Q")

    def add(self, event: ChromeEvent, thread: int) -> None:
        args = detail_of(event)
        if whole(args.device_type) == _HOST_DEVICE_TYPE:
            self.of_host = True
            return
        numbers = [
            whole(value, _MAX_SIZE)
            for value in (args.device_id, args.changed_bytes, args.total_allocated, args.total_reserved)
        ]
        address = whole(args.address, 1 << 64)
        if None in numbers or address is None or address < 0 or (numbers[0] or 0) < 0:
            return
        device, size, allocated, reserved = (number or 0 for number in numbers)
        self._times.append(event)
        self._columns.append(device, thread, _NAMES[event.name], size, allocated, reserved)
        self._addresses.append(address)

    def by_device(self, spans: HostSpans, has_lines: bool) -> list[ProfiledMemory]:
        start, _, valid = self._times.ns()
        columns, addresses = self._columns.arrays(), np.array(self._addresses, dtype=np.uint64)
        around = spans.innermost(columns["thread"], start) if len(spans) else np.full(len(start), -1)
        stack_of = _stacks(spans, has_lines)
        found = []
        for device in sorted(set(columns["device"][valid].tolist())):
            rows = np.flatnonzero(valid & (columns["device"] == device))
            rows = rows[np.argsort(start[rows], kind="stable")].tolist()
            found.append(
                ProfiledMemory(
                    device=device,
                    events=[
                        MemoryEvent(
                            action=_action(int(columns["out"][row]), int(columns["size"][row])),
                            address=int(addresses[row]),
                            size_bytes=abs(int(columns["size"][row])),
                            time_us=int(start[row]) // 1000,
                            stack=stack_of(int(around[row])),
                        )
                        for row in rows
                    ],
                    allocated_bytes=columns["allocated"][rows].tolist(),
                    reserved_bytes=columns["reserved"][rows].tolist(),
                )
            )
        return found


def _action(out: int, size: int) -> str:
    if out:
        return "oom"
    return "alloc" if size >= 0 else "free_requested"


def _stacks(spans: HostSpans, has_lines: bool) -> Callable[[int], Stack]:
    """The stack of each span: its operators and ranges, and the lines of code around them."""

    @cache
    def frame(label: int) -> StackFrame:
        one = spans.labels[label]
        if one.kind is SpanKind.FUNCTION and (line := code_line(one.name)):
            return StackFrame(*line)
        return StackFrame(_part_of_torch(one.name), 0, one.name)

    @lru_cache(maxsize=65536)
    def stack(at: int) -> Stack:
        frames = [frame(int(spans.label[one])) for one in spans.around(at)][:_MAX_FRAMES]
        if frames and not has_lines and not any(one.file for one in frames):
            # Operators that neither the optimizer nor a backward pass runs.
            frames.append(StackFrame("", 0, "forward"))
        return tuple(frames)

    return stack


def _part_of_torch(name: str) -> str:
    """The folder of PyTorch that operators and ranges of this name are from; empty for others."""
    if name.startswith("Optimizer."):
        return "torch/optim/"
    if name.startswith(("autograd::", "torch::autograd")):
        return "torch/autograd/"
    if name.startswith(("nccl:", "c10d::", "record_param_comms", "DistributedDataParallel", "FSDP")):
        return "torch/distributed/"
    return ""
