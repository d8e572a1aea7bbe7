"""Lines of NCCL's Inspector, the profiler plugin that ships with NCCL since 2.28, as records.

A line is a JSON object: one completed collective of one rank. `coll_exec_time_us` is the longest channel's
time, `coll_timing_source` its clock. The Inspector records only a part of a job's operations: no sends or
receives of pipeline-parallel Megatron-LM, and nothing below 8 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from perfd.model import CollectiveTimes, TimingSource
from perfd_collectors.nccl.segments import UNTIMED_KERNEL_NS

SOURCE = "inspector"
_TIMING = {"kernel_gpu": TimingSource.GPU, "kernel_cpu": TimingSource.PROXY}
"""A third source, `collective_cpu`, is the time until the call returned, which is not a duration."""
_MAX_LINE_BYTES = 1 << 20
"""Longer lines are skipped; bounds memory. Chosen, not measured."""
_MAX_U64 = (1 << 64) - 1
"""The inspector's counters are unsigned 64-bit ones."""
_MAX_DURATION_US = 1e12
"""11.6 days; longer durations are garbage."""
_IDENTITY = re.compile("(?:0x)?([0-9a-f]{1,16})", re.ASCII | re.IGNORECASE)


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int
    comm_name: str = ""


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int
    hostname: str = ""
    pid: int | None = None


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_timing_source: str = "kernel_gpu"


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedOperation:
    """One line: a collective of one rank of a communicator."""

    communicator: str
    communicator_name: str
    communicator_rank: int
    communicator_size: int
    operation: str
    sequence: int
    size_bytes: int
    duration_ns: int
    timing: TimingSource
    written_unix_ns: int
    pid: int | None


_DECODER = msgspec.json.Decoder(_Line)


def parse_line(line: bytes) -> InspectedOperation | None:
    """The operation of a line; None when it is truncated, of another kind, or without a duration."""
    line = line.strip()
    if not (line.startswith(b"{") and line.endswith(b"}")) or len(line) > _MAX_LINE_BYTES:
        return None
    try:
        parsed = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    done, header = parsed.coll_perf, parsed.header
    identity = _IDENTITY.fullmatch(header.id)
    timing = _TIMING.get(done.coll_timing_source)
    if identity is None or timing is None or not 0 < done.coll_exec_time_us < _MAX_DURATION_US:
        return None
    duration_ns = round(done.coll_exec_time_us * 1000)
    sound = (
        0 <= header.rank < header.n_ranks < 1 << 31
        and 0 <= done.coll_sn < 1 << 62
        and 0 <= done.coll_msg_size_bytes <= _MAX_U64
        and duration_ns > 0
        and 0 < parsed.metadata.dump_timestamp_us < 1 << 53
    )
    if not sound:
        return None
    return InspectedOperation(
        communicator=f"{int(identity[1], 16):x}",
        communicator_name="" if header.comm_name == "unknown" else header.comm_name,
        communicator_rank=header.rank,
        communicator_size=header.n_ranks,
        operation=done.coll,
        sequence=done.coll_sn,
        size_bytes=done.coll_msg_size_bytes,
        duration_ns=duration_ns,
        timing=timing,
        written_unix_ns=parsed.metadata.dump_timestamp_us * 1000,
        pid=parsed.metadata.pid,
    )


class InspectorLines:
    """Splits a stream of bytes into operations; an incomplete line waits for its rest."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self.skipped_lines = 0
        """Lines without an operation."""

    def feed(self, data: bytes) -> Iterator[InspectedOperation]:
        """The operations of all lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
                continue
            operation = parse_line(line)
            if operation is not None:
                yield operation
            elif line.strip():
                self.skipped_lines += 1
        if len(self._rest) > _MAX_LINE_BYTES:
            # Too long for an operation: the rest of the line is dropped.
            self._rest, self._skipping = b"", True
            self.skipped_lines += 1

    def restart(self, *, inside_a_line: bool) -> None:
        """Drop the incomplete line: the next bytes are of another file, or follow a gap."""
        self._rest, self._skipping = b"", inside_a_line


def reduce_inspected(
    operations: Iterable[InspectedOperation], *, job: str, rank: int, start_unix_ns: int, end_unix_ns: int
) -> list[CollectiveTimes]:
    """One record per communicator and kind of operation."""
    groups: dict[tuple[str, str, TimingSource], list[InspectedOperation]] = {}
    for operation in operations:
        key = (operation.communicator, operation.operation, operation.timing)
        groups.setdefault(key, []).append(operation)
    return [
        _record(members, job=job, rank=rank, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns)
        for members in groups.values()
    ]


def _record(
    operations: Sequence[InspectedOperation], *, job: str, rank: int, start_unix_ns: int, end_unix_ns: int
) -> CollectiveTimes:
    first = operations[0]
    # The Inspector uses the same timestamps as perfd's plugin.
    durations = [operation.duration_ns + UNTIMED_KERNEL_NS for operation in operations]
    sizes = [operation.size_bytes for operation in operations]
    return CollectiveTimes(
        job=job,
        rank=rank,
        communicator=first.communicator,
        communicator_rank=first.communicator_rank,
        communicator_size=first.communicator_size,
        communicator_name=first.communicator_name,
        operation=first.operation,
        timing=first.timing,
        start_unix_ns=start_unix_ns,
        end_unix_ns=end_unix_ns,
        count=len(operations),
        total_bytes=float(sum(sizes)),
        total_s=sum(durations) / 1e9,
        min_s=min(durations) / 1e9,
        max_s=max(durations) / 1e9,
        sequences=[operation.sequence for operation in operations],
        durations_ns=durations,
        sizes_bytes=sizes,
        source=SOURCE,
    )
