"""Which communication kernels NCCL's calls launched, by its NVTX ranges and their payloads."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.formatting import rank_names
from perfd.trace.model.kernel_classes import collective_operation
from perfd.trace.model.operation_kinds import HostCallKind, OperationKind
from perfd.trace.model.rank_trace import Collective, GpuOperations, HostCalls, Message, RankTrace
from perfd.trace.readers.nsys.nccl_payloads import NcclPayload

_CALL = re.compile(r"p?nccl([A-Z][A-Za-z]{1,40})")
_PER_RANK = frozenset({"allgather", "reducescatter", "alltoall"})
"""NCCL counts what one rank contributes to one; the whole message has that of all ranks."""
_NO_DATA_BYTES = 8
"""One number of the widest type: such a message is a barrier, or a sum of one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCall:
    """One NVTX range of NCCL."""

    name: str
    """Without the prefix: `AllReduce`, `Send`, `GroupEnd`."""
    start_ns: int
    end_ns: int
    thread: int
    payload: NcclPayload | None


@dataclass(frozen=True, slots=True)
class _Launching:
    """A range within which kernels are launched, and the calls whose kernels these are."""

    start_ns: int
    end_ns: int
    calls: tuple[NcclCall, ...]


def call_name(text: str) -> str | None:
    """The call of a range's text; None of other ranges."""
    found = _CALL.fullmatch(text)
    return found[1] if found else None


def collectives_of(
    operations: GpuOperations, calls: HostCalls, ranges: Iterable[NcclCall]
) -> list[Collective]:
    """The communication kernels of a rank, identified by the NCCL calls that launched them.

    A call launches its kernel before it returns; of a group, the end of the outermost one launches those of
    all its calls. Its group has no name until the ranks of all traces are known (`with_groups`).
    """
    windows = {thread: list(_launching(ones)) for thread, ones in _by_thread(ranges).items()}
    if not any(windows.values()):
        return []
    starts = {thread: [one.start_ns for one in mine] for thread, mine in windows.items()}
    launched: dict[tuple[int, int], list[int]] = defaultdict(list)
    for thread, start_ns, at in _launches(operations, calls):
        place = bisect_right(starts.get(thread, ()), start_ns) - 1
        if place >= 0 and start_ns <= windows[thread][place].end_ns:
            launched[thread, place].append(at)
    found: list[Collective] = []
    for (thread, place), kernels in launched.items():
        found += _described(kernels, windows[thread][place].calls)
    return sorted(found, key=lambda one: one.operation)


def with_groups(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The traces of one capture, with the ranks of each communicator: those that use it.

    Peers of sends and receives become ranks of the job: a communicator numbers its ranks in their order.
    """
    members: dict[int, set[int]] = defaultdict(set)
    for trace in traces:
        for one in trace.collectives:
            if one.communicator is not None and trace.rank is not None:
                members[one.communicator].add(trace.rank)
    if not members:
        return list(traces)
    ranks = {communicator: tuple(sorted(found)) for communicator, found in members.items()}
    return [
        replace(trace, collectives=[_in_group(one, ranks) for one in trace.collectives]) for trace in traces
    ]


def _in_group(one: Collective, members: Mapping[int, tuple[int, ...]]) -> Collective:
    if one.communicator is None:
        return one
    ranks = members.get(one.communicator, ())
    per_rank = collective_operation(one.name) in _PER_RANK
    group = f"communicator {one.communicator:x}"
    if len(ranks) < 2:
        # The others were not traced.
        return replace(one, group=group, size_bytes=None if per_rank else one.size_bytes, messages=())
    group = f"{rank_names(ranks)} ({group})"
    size = one.size_bytes
    return replace(
        one,
        group=group,
        group_ranks=ranks,
        size_bytes=size * len(ranks) if size is not None and per_rank else size,
        messages=tuple(
            replace(message, peer=ranks[message.peer], group=group)
            for message in one.messages
            if 0 <= message.peer < len(ranks)
        ),
    )


def _by_thread(ranges: Iterable[NcclCall]) -> Mapping[int, list[NcclCall]]:
    found: dict[int, list[NcclCall]] = defaultdict(list)
    for one in ranges:
        found[one.thread].append(one)
    return {thread: sorted(ones, key=lambda one: one.start_ns) for thread, ones in found.items()}


def _launching(ranges: Sequence[NcclCall]) -> Iterator[_Launching]:
    """Ranges of one thread that launch, in order of start; those of a group that began before do not."""
    depth = 0
    waiting: list[NcclCall] = []
    for one in ranges:
        if one.name == "GroupStart":
            depth += 1
        elif one.name == "GroupEnd":
            depth -= 1
            if depth == 0 and waiting:
                yield _Launching(one.start_ns, one.end_ns, tuple(waiting))
            if depth <= 0:
                depth, waiting = 0, []
        elif one.payload is not None and not one.name.startswith("Comm"):
            if depth:
                waiting.append(one)
            else:
                yield _Launching(one.start_ns, one.end_ns, (one,))


def _launches(operations: GpuOperations, calls: HostCalls) -> Iterator[tuple[int, int, int]]:
    """Thread, start of the launch, and place of each communication kernel."""
    is_launch = calls.kind == HostCallKind.LAUNCH
    by_correlation = dict(
        zip(
            calls.correlation[is_launch].tolist(),
            zip(calls.thread[is_launch].tolist(), calls.start_ns[is_launch].tolist(), strict=True),
            strict=True,
        )
    )
    for at in np.flatnonzero(operations.kind == OperationKind.COMMUNICATION).tolist():
        launch = by_correlation.get(int(operations.correlation[at]))
        if launch is not None:
            yield (*launch, at)


def _described(kernels: Sequence[int], calls: Sequence[NcclCall]) -> Iterator[Collective]:
    """The kernels of one launch: a communicator's sends and receives are one, collectives are one each."""
    messages = [one for one in calls if one.name in {"Send", "Recv"}]
    others = [one for one in calls if one.name not in {"Send", "Recv"}]
    if messages and not others:
        by_communicator: dict[int, list[NcclCall]] = {}
        for one in messages:
            if one.payload is not None:
                by_communicator.setdefault(one.payload.communicator, []).append(one)
        if len(by_communicator) == len(kernels):
            for at, (communicator, mine) in zip(kernels, by_communicator.items(), strict=True):
                yield _transfer(at, communicator, mine)
    elif others and not messages and len(others) == len(kernels):
        for at, one in zip(kernels, others, strict=True):
            yield _collective(at, (one,))
    elif len(kernels) == 1 and not messages and len({_kind(one) for one in others}) == 1:
        yield _collective(kernels[0], others)


def _transfer(at: int, communicator: int, calls: Sequence[NcclCall]) -> Collective:
    return Collective(
        operation=at,
        name="sendrecv",
        group="",
        communicator=communicator,
        size_bytes=_total_bytes(calls),
        messages=tuple(
            Message(peer=one.payload.peer, sent=one.name == "Send")
            for one in calls
            if one.payload and one.payload.peer is not None
        ),
    )


def _kind(call: NcclCall) -> tuple[str, int | None]:
    return call.name, call.payload.communicator if call.payload else None


def _collective(at: int, calls: Sequence[NcclCall]) -> Collective:
    """Calls of one kind that one kernel serves."""
    name, communicator = _kind(calls[0])
    size = _total_bytes(calls)
    return Collective(
        operation=at,
        name=name.lower(),
        group="",
        communicator=communicator,
        size_bytes=size,
        elements=1 if size is not None and size <= _NO_DATA_BYTES else None,
    )


def _total_bytes(calls: Iterable[NcclCall]) -> int | None:
    sizes = [one.payload.size_bytes if one.payload else None for one in calls]
    return None if None in sizes else sum(size for size in sizes if size is not None)
