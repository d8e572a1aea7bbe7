"""Replays the events of a GPU's memory: what was alive at the peak, what is left unused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfd.trace.memory.memory_snapshot import DeviceMemory, MemoryEvent, Stack

_GETS = frozenset({"segment_alloc", "segment_map"})
_RETURNS = frozenset({"segment_free", "segment_unmap"})


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
    """Allocated before the first recorded event, and freed since."""


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
    peak_at, _ = _peak(memory.events, requested)
    _, peak_reserved = _peak_of([_reserved_change(event) for event in memory.events], reserved)
    first_forward = min((life.born for life in lives if _is_forward(life.stack)), default=len(memory.events))
    at_peak = [
        Allocation(size_bytes=life.size_bytes, use=_use(life, first_forward), stack=life.stack)
        for life in lives
        if life.born <= peak_at and (life.freed is None or life.freed > peak_at)
    ]
    return AllocationHistory(
        device=memory.device,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        requested_bytes=requested,
        peak_bytes=sum(allocation.size_bytes for allocation in at_peak),
        peak_reserved_bytes=peak_reserved,
        peak_time_us=memory.events[peak_at].time_us if peak_at >= 0 else None,
        at_peak=at_peak,
        unused_pieces_bytes=sorted(_unused_pieces(memory), reverse=True),
        expandable_segments=memory.expandable_segments,
        failed=_failures(memory, allocated, reserved),
        events=len(memory.events),
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


def _peak(events: Sequence[MemoryEvent], at_end: int) -> tuple[int, int]:
    changes = {"alloc": 1, "free_requested": -1}
    return _peak_of([changes.get(event.action, 0) * event.size_bytes for event in events], at_end)


def _peak_of(changes: Sequence[int], at_end: int) -> tuple[int, int]:
    """The event after which a size was largest (-1: before all), and that size."""
    size = at_end - sum(changes)
    at, most = -1, size
    for number, change in enumerate(changes):
        size += change
        if size > most:
            at, most = number, size
    return at, most


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
    if not stack or any("torch/autograd/" in frame.file for frame in stack):
        return MemoryUse.GRADIENTS if life.freed is None or life.freed_by else MemoryUse.BACKWARD
    if _is_forward(stack):
        return MemoryUse.ACTIVATIONS
    stays = life.born < first_forward and life.freed is None
    return MemoryUse.PARAMETERS if stays else MemoryUse.OTHER


def _is_forward(stack: Stack) -> bool:
    return any(frame.function == "forward" or "torch/nn/functional.py" in frame.file for frame in stack)
