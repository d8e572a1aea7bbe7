"""Which collective or transfer a communication kernel is, from what PyTorch wrote on it and beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.model.operation_kinds import HostCallKind
from perfd.trace.model.rank_trace import Collective, GpuOperations, HostCalls, Message
from perfd.trace.readers.chrome_json import Args

_DTYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "double", "complexfloat"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMessage:
    """A send or receive as the host asked for it."""

    start_ns: int
    thread: int
    message: Message


def collective(operation: int, args: Args, group_ranks: Mapping[str, tuple[int, ...]]) -> Collective:
    """What the arguments of a communication kernel say.

    `group_ranks` are those of the groups by name, which count where the kernel's own list is shortened.
    """
    sizes = [size for size in (args.elements_in, args.elements_out) if size is not None]
    elements = max(sizes) if sizes else None
    width = _DTYPE_BYTES.get((args.dtype or "").lower())
    listed = args.group_ranks or ""
    ranks = tuple(int(number) for number in re.findall(r"\d+", listed)) if "..." not in listed else ()
    return Collective(
        operation=operation,
        name=args.collective or "",
        group=args.group_description or args.group or "",
        group_ranks=ranks or group_ranks.get(args.group or "", ()),
        sequence=args.sequence,
        size_bytes=elements * width if width and elements else None,
        elements=elements,
    )


def messages_by_operation(
    operations: GpuOperations, calls: HostCalls, messages: Sequence[HostMessage], known: Collection[int]
) -> dict[int, tuple[Message, ...]]:
    """What each kernel without its own name sends and receives.

    PyTorch notes sends and receives on the host, in the order of its calls, and NCCL launches one kernel
    for each group of them. So a kernel that was launched on a thread carries what was noted on
    that thread since the last such kernel.
    """
    launches = calls.kind == HostCallKind.LAUNCH
    by_correlation = {
        correlation: (start, thread)
        for correlation, start, thread in zip(
            calls.correlation[launches].tolist(),
            calls.start_ns[launches].tolist(),
            calls.thread[launches].tolist(),
            strict=True,
        )
    }
    unnamed = [
        (*launch, at)
        for at in _unnamed_transfers(operations, known)
        if (launch := by_correlation.get(int(operations.correlation[at])))
    ]
    found: dict[int, tuple[Message, ...]] = {}
    pending = sorted(messages, key=lambda one: one.start_ns, reverse=True)
    waiting: dict[int, list[Message]] = {}
    for start_ns, thread, at in sorted(unnamed):
        while pending and pending[-1].start_ns <= start_ns:
            noted = pending.pop()
            waiting.setdefault(noted.thread, []).append(noted.message)
        if mine := waiting.pop(thread, None):
            found[at] = tuple(mine)
    return found


def _unnamed_transfers(operations: GpuOperations, known: Collection[int]) -> list[int]:
    communication = np.flatnonzero(operations.kind == 1)
    return [at for at in communication.tolist() if at not in known]
