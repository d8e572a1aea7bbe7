"""Replays the events of a GPU's memory, of a snapshot or a trace: what was alive at the peak, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise

from perfd.trace.memory.memory_snapshot import DeviceMemory, MemoryEvent, Stack
from perfd.trace.memory.profiled_memory import ProfiledMemory

_GETS = frozenset({"segment_alloc", "segment_map"})
_RETURNS = frozenset({"segment_free", "segment_unmap"})
MAX_LEVELS = 400
"""Of a timeline: about as many as an image has columns."""


class MemoryUse(StrEnum):
    """What memory is for, by the Python code that asked for it and that gave it back."""

    PARAMETERS = "parameters"
    """And buffers: what exists before the first forward pass and stays."""
    GRADIENTS = "gradients"
    """Of a backward pass, freed by Python code (`zero_grad`) or never."""
    OPTIMIZER = "optimizer"
    """State and temporaries of the optimizer's step."""
    ACTIVATIONS = "activations"
    """And other results of a forward pass."""
    BACKWARD = "backward temporaries"
    """Of a backward pass, freed within it."""
    COMMUNICATION = "communication"
    """Buffers of torch.distributed."""
    OTHER = "other"
    UNKNOWN = "before the record"
    """Allocated before the first recorded event, by code that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One allocation that was alive at the peak."""

    size_bytes: int
    use: MemoryUse
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """A request that the allocator could not meet."""

    requested_bytes: int
    device_free_bytes: int | None
    """What CUDA had left."""
    unused_bytes: int
    """What the allocator held and no tensor used, in pieces."""
    stack: Stack


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """What was in use and what was held of CUDA after an event."""

    time_us: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationHistory:
    """One GPU."""

    device: int
    allocated_bytes: int
    """At the end, by tensors, as rounded by the allocator and said by torch.cuda.memory_allocated()."""
    reserved_bytes: int
    """At the end, of CUDA."""
    requested_bytes: int
    """At the end, before rounding."""
    peak_bytes: int
    """The most that was requested and in use at a time since the record began. Rounding adds less than 1%."""
    peak_reserved_bytes: int
    peak_time_us: int | None
    """None if the peak was before the first event, or nothing was recorded."""
    at_peak: Sequence[Allocation]
    unused_pieces_bytes: Sequence[int]
    """Free blocks beside used ones in a segment, at the end, the largest first: CUDA cannot get them back."""
    expandable_segments: bool
    failed: Sequence[FailedAllocation]
    events: int
    levels: Sequence[MemoryLevel] = ()
    """Over time, at most `MAX_LEVELS`: of neighbors the one with the most in use. Empty without events."""
    reserved_at_peak_bytes: int | None = None
    pieces_known: bool = True
    """Whether `unused_pieces_bytes` is known: a trace has no blocks."""

    def share_of_peak(self, size_bytes: int) -> float:
        """A ratio; 0 without any memory."""
        return size_bytes / self.peak_bytes if self.peak_bytes else 0.0


@dataclass(slots=True)
class _Life:
    """An allocation from its event to that which freed it."""

    born: int
    size_bytes: int
    stack: Stack
    freed: int | None = None
    freed_by: Stack = ()


def replay(memory: DeviceMemory) -> AllocationHistory:
    """Derive everything from a snapshot's end state and the events before it."""
    blocks = [block for segment in memory.segments for block in segment.blocks]
    allocated = sum(block.size_bytes for block in blocks if block.allocated)
    reserved = sum(segment.size_bytes for segment in memory.segments)
    lives, alive = _lives(memory.events)
    # What is alive at the end and was never seen to begin was there before the record.
    lives += [
        _Life(born=-1, size_bytes=block.size_bytes, stack=block.stack)
        for block in blocks
        if block.allocated and block.address not in alive
    ]
    requested = sum(block.requested_bytes for block in blocks if block.allocated)
    # Events have sizes before rounding.
    in_use = _sizes([_change(event) for event in memory.events], requested)
    held = _sizes([_reserved_change(event) for event in memory.events], reserved)
    peak_at = _largest(in_use)
    at_peak = _at_peak(lives, peak_at, len(memory.events))
    return AllocationHistory(
        device=memory.device,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        requested_bytes=requested,
        peak_bytes=sum(allocation.size_bytes for allocation in at_peak),
        peak_reserved_bytes=max(held),
        reserved_at_peak_bytes=held[peak_at + 1],
        levels=_levels(memory.events, in_use, held),
        peak_time_us=memory.events[peak_at].time_us if peak_at >= 0 else None,
        at_peak=at_peak,
        unused_pieces_bytes=sorted(_unused_pieces(memory), reverse=True),
        expandable_segments=memory.expandable_segments,
        failed=_failures(memory, allocated, reserved),
        events=len(memory.events),
    )


def replay_profile(memory: ProfiledMemory) -> AllocationHistory:
    """Derive the same from the events of a trace, which say what was in use after each of them."""
    lives, _ = _lives(memory.events)
    first = memory.events[0]
    before = max(0, memory.allocated_bytes[0] - _change(first))
    # What is freed later without having been seen to begin is part of it.
    seen = sum(life.size_bytes for life in lives if life.born < 0)
    if before > seen:
        lives.append(_Life(born=-1, size_bytes=before - seen, stack=()))
    in_use, held = [before, *memory.allocated_bytes], [memory.reserved_bytes[0], *memory.reserved_bytes]
    peak_at = _largest(in_use)
    return AllocationHistory(
        device=memory.device,
        allocated_bytes=in_use[-1],
        reserved_bytes=held[-1],
        requested_bytes=in_use[-1],
        peak_bytes=in_use[peak_at + 1],
        peak_reserved_bytes=max(held),
        reserved_at_peak_bytes=held[peak_at + 1],
        peak_time_us=memory.events[peak_at].time_us if peak_at >= 0 else None,
        at_peak=_at_peak(lives, peak_at, len(memory.events)),
        unused_pieces_bytes=(),
        pieces_known=False,
        expandable_segments=False,
        failed=[
            FailedAllocation(
                requested_bytes=event.size_bytes,
                device_free_bytes=None,
                unused_bytes=max(0, reserved - allocated),
                stack=event.stack,
            )
            for event, allocated, reserved in zip(
                memory.events, memory.allocated_bytes, memory.reserved_bytes, strict=True
            )
            if event.action == "oom"
        ],
        events=len(memory.events),
        levels=_levels(memory.events, in_use, held),
    )


def _lives(events: Sequence[MemoryEvent]) -> tuple[list[_Life], dict[int, _Life]]:
    """All allocations that an event shows, and those that are alive at the end by address."""
    lives: list[_Life] = []
    alive: dict[int, _Life] = {}
    for number, event in enumerate(events):
        if event.action == "alloc":
            life = _Life(born=number, size_bytes=event.size_bytes, stack=event.stack)
            lives.append(life)
            alive[event.address] = life
        elif event.action == "free_requested":
            freed = alive.pop(event.address, None)
            if freed is None:
                freed = _Life(born=-1, size_bytes=event.size_bytes, stack=())
                lives.append(freed)
            freed.freed, freed.freed_by = number, event.stack
    return lives, alive


def _at_peak(lives: Sequence[_Life], peak_at: int, events: int) -> list[Allocation]:
    """What was alive after the event `peak_at`; -1 for before all of them."""
    first_forward = min((life.born for life in lives if _is_forward(life.stack)), default=events)
    return [
        Allocation(size_bytes=life.size_bytes, use=_use(life, first_forward), stack=life.stack)
        for life in lives
        if life.born <= peak_at and (life.freed is None or life.freed > peak_at)
    ]


def _change(event: MemoryEvent) -> int:
    return {"alloc": 1, "free_requested": -1}.get(event.action, 0) * event.size_bytes


def _sizes(changes: Sequence[int], at_end: int) -> list[int]:
    """A size before all changes and after each of them, by that at the end."""
    return list(accumulate(changes, initial=at_end - sum(changes)))


def _largest(sizes: Sequence[int]) -> int:
    """The event after which a size was first largest; -1 for before all."""
    return max(range(len(sizes)), key=lambda at: (sizes[at], -at)) - 1


def _levels(events: Sequence[MemoryEvent], in_use: Sequence[int], held: Sequence[int]) -> list[MemoryLevel]:
    """A timeline of sizes, which begin before the first event."""
    count = len(events)
    parts = min(count, MAX_LEVELS)
    bounds = [count * at // parts for at in range(parts + 1)] if parts else []
    return [
        MemoryLevel(events[at].time_us, in_use[at + 1], held[at + 1])
        for first, last in pairwise(bounds)
        for at in (max(range(first, last), key=lambda at: in_use[at + 1]),)
    ]


def _reserved_change(event: MemoryEvent) -> int:
    if event.action in _GETS:
        return event.size_bytes
    return -event.size_bytes if event.action in _RETURNS else 0


def _unused_pieces(memory: DeviceMemory) -> list[int]:
    return [
        block.size_bytes
        for segment in memory.segments
        if any(block.allocated for block in segment.blocks)
        for block in segment.blocks
        if not block.allocated
    ]


def _failures(memory: DeviceMemory, allocated: int, reserved: int) -> list[FailedAllocation]:
    """Failed requests, with what was unused at that moment."""
    failed = []
    for event in reversed(memory.events):
        if event.action == "oom":
            failed.append(
                FailedAllocation(
                    requested_bytes=event.size_bytes,
                    device_free_bytes=event.device_free_bytes,
                    unused_bytes=max(0, reserved - allocated),
                    stack=event.stack,
                )
            )
        elif event.action == "alloc":
            allocated -= event.size_bytes
        elif event.action == "free_requested":
            allocated += event.size_bytes
        reserved -= _reserved_change(event)
    return failed[::-1]


def _use(life: _Life, first_forward: int) -> MemoryUse:
    """What an allocation is for. The rules are PyTorch's conventions of where its own code allocates."""
    stack = life.stack
    if not stack and life.born < 0:
        return MemoryUse.UNKNOWN
    if any("torch/optim/" in frame.file for frame in stack):
        return MemoryUse.OPTIMIZER
    if any("torch/distributed/" in frame.file and frame.function != "forward" for frame in stack):
        return MemoryUse.COMMUNICATION
    if _is_backward(stack):
        within = life.freed is not None and _is_backward(life.freed_by)
        return MemoryUse.BACKWARD if within else MemoryUse.GRADIENTS
    if _is_forward(stack):
        return MemoryUse.ACTIVATIONS
    stays = life.born < first_forward and life.freed is None
    return MemoryUse.PARAMETERS if stays else MemoryUse.OTHER


def _is_forward(stack: Stack) -> bool:
    return any(frame.function == "forward" or "torch/nn/functional.py" in frame.file for frame in stack)


def _is_backward(stack: Stack) -> bool:
    """A backward pass runs without Python, or below the call that waits for it."""
    return not stack or any(
        "torch/autograd/" in frame.file and not frame.file.endswith("profiler.py") for frame in stack
    )
