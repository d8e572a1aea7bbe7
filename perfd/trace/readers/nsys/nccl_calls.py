"""Which communication kernels NCCL's calls launched, by its NVTX ranges and their payloads.

A payload has communicator, size and peer of a call. Nsight Systems exports them, if asked for with
`--include-blobs=true`, as blobs with a head of 32 bytes (little-endian): domain (4 bytes), 4 unused, schema
(4), 4 unused, bytes of the payload (8), of all (8). Where the fields of a payload are, the table of schemas
says. (Sources: the schemas in NCCL's `src/include/nvtx_payload_schemas.h` and in the tables of a capture with
NCCL 2.28.9; the head is what others decoded 346,400 payloads by, of an export of Nsight Systems 2026.)
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfd.formatting import rank_names
from perfd.trace.model.kernel_classes import collective_operation
from perfd.trace.model.operation_kinds import HostCallKind, OperationKind
from perfd.trace.model.rank_trace import Collective, GpuOperations, HostCalls, Message, RankTrace

_HEAD_BYTES = 32
"""Before the payload of an exported event."""
_SCHEMA_AT = 8
"""Where the header has the number of the payload's schema."""
_COMMUNICATOR, _SIZE, _PEER, _RANKS = (
    "NCCL communicator ID",
    "Message size [bytes]",
    "Peer rank",
    "No. of ranks",
)
_WIDTHS = {_COMMUNICATOR: "<Q", _SIZE: "<Q", _PEER: "<i"}
_MAX_PAYLOAD_BYTES = 4096
"""NCCL's have 8 to 40; a field that begins later is damage."""

SchemaFields = Mapping[tuple[int, int], Mapping[str, int]]
"""By domain and schema: the fields that are read, with the offset of each in the payload."""
_CALL = re.compile(r"p?nccl([A-Z][A-Za-z]{1,40})")
_PER_RANK = frozenset({"allgather", "reducescatter", "alltoall"})
"""NCCL counts what one rank contributes to one; the whole message has that of all ranks."""
_NO_DATA_BYTES = 8
"""One number of the widest type: such a message is a barrier, or a sum of one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPayload:
    """The payload of one range."""

    communicator: int
    """The same number on all its ranks."""
    size_bytes: int | None = None
    """As NCCL counts it: of all-gather, reduce-scatter and all-to-all what one rank contributes to one."""
    peer: int | None = None
    """Of a send or receive: the other's number within the communicator."""


def schema_fields(rows: Iterable[tuple[Any, Any, Any, Any]]) -> SchemaFields:
    """From rows of domain, schema, name and offset of the fields of all schemas."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, name, offset in rows:
        at = 0 if offset is None else offset
        numbers = isinstance(domain, int) and isinstance(schema, int) and isinstance(at, int)
        if name in _WIDTHS and numbers and 0 <= at <= _MAX_PAYLOAD_BYTES:
            found.setdefault((domain, schema), {})[str(name)] = at
    return {key: fields for key, fields in found.items() if _COMMUNICATOR in fields}


def decoded(blob: object, domain: int, fields: SchemaFields) -> NcclPayload | None:
    """The payload of a range of a domain; None of one that is not NCCL's, or damaged."""
    if isinstance(blob, str):
        try:
            blob = bytes.fromhex(blob)
        except ValueError:
            return None
    if not isinstance(blob, bytes) or len(blob) < _HEAD_BYTES:
        return None
    (schema,) = struct.unpack_from("<I", blob, _SCHEMA_AT)
    payload = blob[_HEAD_BYTES:]
    values: dict[str, int] = {}
    for name, at in fields.get((domain, schema), {}).items():
        if at + struct.calcsize(_WIDTHS[name]) <= len(payload):
            (values[name],) = struct.unpack_from(_WIDTHS[name], payload, at)
    if _COMMUNICATOR not in values:
        return None
    size = values.get(_SIZE)
    return NcclPayload(
        communicator=values[_COMMUNICATOR],
        size_bytes=size if size is not None and size < 2**62 else None,
        peer=values.get(_PEER),
    )


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
