"""What fills a GPU's memory, and what would make room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfd.formatting import data_size, percent
from perfd.thresholds import THRESHOLDS
from perfd.trace.memory.allocation_history import AllocationHistory, MemoryUse
from perfd.trace.memory.memory_snapshot import Stack, StackFrame

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ADVICE = {
    MemoryUse.ACTIVATIONS: (
        "Recompute activations (activation checkpointing), use a smaller micro-batch with more accumulation,"
        " or split the sequence (context or sequence parallelism)."
    ),
    MemoryUse.OPTIMIZER: (
        "Shard the optimizer's state over the data-parallel ranks (FSDP, ZeRO, Megatron-LM's distributed"
        " optimizer), or keep it in 8 bits."
    ),
    MemoryUse.PARAMETERS: "Shard the parameters (FSDP, ZeRO 3, tensor or pipeline parallelism).",
    MemoryUse.GRADIENTS: "Shard the gradients (FSDP, ZeRO 2), or reduce them in 16 bits.",
    MemoryUse.BACKWARD: "Use fused losses and attention, whose backward passes keep no large temporaries.",
    MemoryUse.COMMUNICATION: "Use smaller buckets (DDP: bucket_cap_mb; ZeRO: reduce_bucket_size).",
    MemoryUse.UNKNOWN: (
        "To know what it is, record from before the model is made:"
        " torch.cuda.memory._record_memory_history(), then torch.cuda.memory._dump_snapshot()."
    ),
}
_LIBRARIES = ("/torch/", "<string>", "<frozen")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFinding:
    """Evidence, and what to do; sizes in words."""

    evidence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlace:
    """What one line of the job's code holds at the peak."""

    where: str
    """`FILE:LINE FUNCTION` of the innermost code that is not PyTorch's, or `backward pass`."""
    use: MemoryUse
    size_bytes: int
    count: int


def sizes_by_use(history: AllocationHistory) -> list[tuple[MemoryUse, int]]:
    """Bytes alive at the peak by use, the largest first."""
    sizes: Counter[MemoryUse] = Counter()
    for allocation in history.at_peak:
        sizes[allocation.use] += allocation.size_bytes
    return sizes.most_common()


def places(history: AllocationHistory) -> list[MemoryPlace]:
    """Where what is alive at the peak was allocated, the largest first."""
    sizes: Counter[tuple[str, MemoryUse]] = Counter()
    counts: Counter[tuple[str, MemoryUse]] = Counter()
    for allocation in history.at_peak:
        key = (place_of(allocation.stack, allocation.use), allocation.use)
        sizes[key] += allocation.size_bytes
        counts[key] += 1
    return [
        MemoryPlace(where=where, use=use, size_bytes=size, count=counts[where, use])
        for (where, use), size in sizes.most_common()
    ]


def place_of(stack: Stack, use: MemoryUse | None = None) -> str:
    """The innermost frame of the job's own code; of code that is all PyTorch's, the innermost frame."""
    if not stack:
        return "unknown" if use in {None, MemoryUse.UNKNOWN} else "backward pass"
    lines = [frame for frame in stack if frame.file.endswith(".py")]
    own = next(
        (frame for frame in lines if not any(part in f"/{frame.file}" for part in _LIBRARIES)), stack[0]
    )
    return _in_words(own)


def memory_findings(history: AllocationHistory) -> list[MemoryFinding]:
    """What is worth a sentence: failed requests first, then what fills the peak."""
    return [*_failed(history), *_unused(history), *_uses(history), *_single(history)]


def _failed(history: AllocationHistory) -> Iterator[MemoryFinding]:
    for failure in history.failed[-1:]:
        free = failure.device_free_bytes
        left = "" if free is None else f", with {data_size(free)} free on the GPU"
        count = len(history.failed)
        others = f" ({count} requests failed)" if count > 1 else ""
        pieces = failure.unused_bytes >= failure.requested_bytes and not history.expandable_segments
        yield MemoryFinding(
            evidence=(
                f"A request for {data_size(failure.requested_bytes)} failed at"
                f" {place_of(failure.stack)}{left} and {data_size(failure.unused_bytes)} unused in"
                f" pieces{others}."
            ),
            advice=(
                f"The unused pieces would suffice: set {_EXPANDABLE}."
                if pieces
                else "Make room for it as below, or ask for less."
            ),
        )


def _unused(history: AllocationHistory) -> Iterator[MemoryFinding]:
    reserved = history.reserved_at_peak_bytes
    if not history.pieces_known and reserved:
        unused = reserved - history.peak_bytes
        if unused / reserved >= THRESHOLDS.memory_unused_ratio:
            yield MemoryFinding(
                evidence=(
                    f"At the peak {data_size(unused)} ({percent(unused / reserved)} of what is reserved) are"
                    " not in use: free blocks of sizes that no request fits."
                ),
                advice=f"Set {_EXPANDABLE}; a snapshot of PyTorch's allocator shows the pieces.",
            )
        return
    unused = sum(history.unused_pieces_bytes)
    if history.expandable_segments or not history.reserved_bytes:
        return
    if unused / history.reserved_bytes >= THRESHOLDS.memory_unused_ratio:
        yield MemoryFinding(
            evidence=(
                f"{data_size(unused)} ({percent(unused / history.reserved_bytes)} of what is reserved) are"
                f" unused in {len(history.unused_pieces_bytes)} pieces between used blocks; the largest has"
                f" {data_size(history.unused_pieces_bytes[0])}."
            ),
            advice=f"Set {_EXPANDABLE}.",
        )


def _uses(history: AllocationHistory) -> Iterator[MemoryFinding]:
    for use, size in sizes_by_use(history)[:1]:
        ratio = history.share_of_peak(size)
        if ratio >= THRESHOLDS.memory_use_ratio and use in _ADVICE:
            yield MemoryFinding(
                evidence=f"{use.value.capitalize()} hold {percent(ratio)} of the peak ({data_size(size)}).",
                advice=_ADVICE[use],
            )


def _single(history: AllocationHistory) -> Iterator[MemoryFinding]:
    # What was there before the record is one sum, not one allocation.
    seen = [allocation for allocation in history.at_peak if allocation.use is not MemoryUse.UNKNOWN]
    largest = max(seen, key=lambda allocation: allocation.size_bytes, default=None)
    ratio = history.share_of_peak(largest.size_bytes) if largest else 0.0
    if largest is None or ratio < THRESHOLDS.memory_single_ratio:
        return
    yield MemoryFinding(
        evidence=(
            f"One allocation has {data_size(largest.size_bytes)}"
            f" ({percent(ratio)} of the peak):"
            f" {place_of(largest.stack, largest.use)} ({largest.use.value})."
        ),
        advice="Compute it in parts, or fuse what makes and uses it (logits: a chunked cross-entropy).",
    )


def _in_words(frame: StackFrame) -> str:
    if not frame.line:
        return frame.function
    parts = frame.file.rsplit("/", 2)
    return f"{'/'.join(parts[-2:])}:{frame.line} {frame.function}".strip()


def as_document(histories: Sequence[tuple[str, AllocationHistory]]) -> dict[str, object]:
    """The object of schema perfd.memory/1, of histories and the files that they are from."""
    return {
        "schema": "perfd.memory/1",
        "gpus": [
            {
                "file": file,
                "gpu": history.device,
                "peak_bytes": history.peak_bytes,
                "peak_reserved_bytes": history.peak_reserved_bytes,
                "allocated_bytes": history.allocated_bytes,
                "reserved_bytes": history.reserved_bytes,
                "unused_pieces_bytes": sum(history.unused_pieces_bytes) if history.pieces_known else None,
                "largest_unused_piece_bytes": (
                    max(history.unused_pieces_bytes, default=0) if history.pieces_known else None
                ),
                "expandable_segments": history.expandable_segments,
                "events": history.events,
                "peak_time_us": history.peak_time_us,
                "reserved_at_peak_bytes": history.reserved_at_peak_bytes,
                "levels": [
                    {
                        "time_us": level.time_us,
                        "allocated_bytes": level.allocated_bytes,
                        "reserved_bytes": level.reserved_bytes,
                    }
                    for level in history.levels
                ],
                "at_peak_bytes": {use.value: size for use, size in sizes_by_use(history)},
                "places": [
                    {
                        "where": place.where,
                        "use": place.use.value,
                        "bytes": place.size_bytes,
                        "count": place.count,
                    }
                    for place in places(history)
                ],
                "failed": [
                    {
                        "requested_bytes": failure.requested_bytes,
                        "device_free_bytes": failure.device_free_bytes,
                        "unused_bytes": failure.unused_bytes,
                        "where": place_of(failure.stack),
                    }
                    for failure in history.failed
                ],
                "findings": [
                    {"evidence": finding.evidence, "advice": finding.advice}
                    for finding in memory_findings(history)
                ],
            }
            for file, history in histories
        ],
    }
