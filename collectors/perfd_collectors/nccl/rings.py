"""Reads the shared memory that perfd's NCCL plugin writes, as the plugin's `layout.h` defines it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import NamedTuple

from perfd.errors import Unavailable

FILE_PREFIX = "perfd-nccl-"
_MAGIC = 0x314C434E
_LAYOUT_VERSION = 1
_HEADER_BYTES = 4096
_COMMUNICATORS = 256
_RING_HEADER_BYTES = 64

_HEADER = struct.Struct("<IIQIIIIiiiIQQ")
_WANTED_OFFSET = 128
_COUNTERS = struct.Struct("<IIQQQQQ")
_COUNTERS_OFFSET = 256
_COMMUNICATOR = struct.Struct("<QiiiIQ24s8x")
_MARK = struct.Struct("<Q")
_RECORD = struct.Struct("<QQQQQQQQQQiHBBBBBBBB34x")

FUNCTIONS = (
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
    "Send", "Recv", "AlltoAll", "Gather", "Scatter",
)  # fmt: skip
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
DATATYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_EARLY_NS = 1_000_000_000
"""A kernel may have begun before NCCL announced it: outside graphs it is launched first."""


class Timing(IntEnum):
    """Where the times of a record come from."""

    HOST = 1
    """The host's enqueue only: no duration."""
    PROXY = 2
    """When NCCL's proxy thread noticed the kernel: late by its polling."""
    GPU = 3
    """The GPU's own clock."""


class Wanted(IntFlag):
    """What the plugin shall record."""

    NOTHING = 0
    OPERATIONS = 1
    GPU_TIME = 2


class Operation(NamedTuple):
    """One collective, send or receive as the plugin recorded it; see `struct perfd_record`."""

    sequence: int
    operation_sequence: int
    start_monotonic_ns: int
    stop_monotonic_ns: int
    complete_monotonic_ns: int
    gpu_start_ns: int
    gpu_stop_ns: int
    gpu_longest_ns: int
    elements: int
    group: int
    peer_or_root: int
    communicator: int
    function: int
    datatype: int
    algorithm: int
    protocol: int
    channels: int
    channels_seen: int
    timing: int
    flags: int

    @property
    def incomplete(self) -> bool:
        """Whether the plugin gave it up before all its kernel channels were seen."""
        return bool(self.flags & 1)

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return bool(self.flags & 2)

    @property
    def timed(self) -> bool:
        """Whether its kernel was timed, well or badly."""
        return self.timing != Timing.HOST and not self.incomplete

    @property
    def duration_ns(self) -> int | None:
        """From the first channel's start to the last one's stop; None where it was not measured, or wrongly.

        NCCL has told stops before starts, and the times of other kernels than it meant: then a kernel seems
        to run for longer than there was time between its announcement and its end.
        """
        duration_ns = self.gpu_stop_ns - self.gpu_start_ns
        possible_ns = self.complete_monotonic_ns - self.start_monotonic_ns + _EARLY_NS
        if not self.timed or self.channels_seen < self.channels or not 0 <= duration_ns <= possible_ns:
            return None
        return duration_ns

    @property
    def gpu_duration_ns(self) -> int | None:
        """The same by the GPU's clock, None without."""
        return self.duration_ns if self.timing == Timing.GPU else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One communicator of a process. Ids are NCCL's, the same on all its ranks; None before interface 4."""

    index: int
    id: int | None
    rank: int | None
    ranks: int | None
    nodes: int | None
    live: bool
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Cumulative since the process started."""

    started: int
    recorded: int
    incomplete: int
    dropped: int
    stale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """Which process writes the segment. `pid` is in the process's own namespace."""

    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    profiler_version: int
    unix_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is new, oldest first within each ring, and how many records were overwritten unread."""

    operations: list[Operation]
    lost: int


class Segment:
    """One process's segment, mapped. Raises `Unavailable` when the file is not one of this layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(
                f"Cannot open {path}: {error.strerror}; run the agent as the job's user."
            ) from error
        try:
            self._memory = mmap.mmap(descriptor, 0)
        except (OSError, ValueError) as error:
            raise Unavailable(f"{path} is not a segment of perfd's NCCL plugin: {error}.") from error
        finally:
            os.close(descriptor)
        try:
            self.process = self._read_header()
        except Unavailable:
            self._memory.close()
            raise
        self._positions: dict[int, int] = {}

    def _read_header(self) -> ProcessInfo:
        if len(self._memory) < _HEADER_BYTES:
            raise Unavailable(f"{self.path} is too short for a segment of perfd's NCCL plugin.")
        fields = _HEADER.unpack_from(self._memory, 0)
        magic, version, file_bytes, pid, entries, record_bytes, communicators, rank, local, world = fields[
            :10
        ]
        if magic != _MAGIC or version != _LAYOUT_VERSION:
            raise Unavailable(
                f"{self.path} has layout {magic:#x}/{version}, not {_MAGIC:#x}/{_LAYOUT_VERSION}: "
                "use the plugin and the agent of one perfd."
            )
        sound = (
            record_bytes == _RECORD.size and communicators == _COMMUNICATORS and entries & (entries - 1) == 0
        )
        if not sound or entries == 0 or file_bytes > len(self._memory):
            raise Unavailable(f"{self.path} contradicts itself; it was written by something else or cut.")
        self._entries = entries
        self._ring_bytes = _RING_HEADER_BYTES + entries * _RECORD.size
        return ProcessInfo(
            pid=pid,
            rank=_or_none(rank),
            local_rank=_or_none(local),
            world_size=_or_none(world),
            profiler_version=fields[10],
            unix_ns=fields[11],
            monotonic_ns=fields[12],
        )

    def communicators(self) -> Iterator[Communicator]:
        """Every communicator that the process ever made, as far as the table still holds it."""
        for index in range(_COMMUNICATORS):
            offset = _HEADER_BYTES + index * _COMMUNICATOR.size
            identity, rank, ranks, nodes, state, _, name = _COMMUNICATOR.unpack_from(self._memory, offset)
            if state == 0:
                return
            yield Communicator(
                index=index,
                id=identity or None,
                rank=_or_none(rank),
                ranks=_or_none(ranks),
                nodes=_or_none(nodes),
                live=state == 1,
                name=name.split(b"\0", 1)[0].decode(errors="replace"),
            )

    def counters(self) -> Counters:
        """The plugin's own counts."""
        _, _, started, recorded, incomplete, dropped, stale = _COUNTERS.unpack_from(
            self._memory, _COUNTERS_OFFSET
        )
        return Counters(
            started=started, recorded=recorded, incomplete=incomplete, dropped=dropped, stale=stale
        )

    def want(self, wanted: Wanted) -> None:
        """Switch recording; the plugin notices at its next operation."""
        struct.pack_into("<I", self._memory, _WANTED_OFFSET, wanted)

    def read(self) -> Reading:
        """The operations recorded since the last call."""
        operations: list[Operation] = []
        lost = 0
        rings = struct.unpack_from("<I", self._memory, _COUNTERS_OFFSET)[0]
        base = _HEADER_BYTES + _COMMUNICATORS * _COMMUNICATOR.size
        for ring in range(min(rings, (len(self._memory) - base) // self._ring_bytes)):
            lost += self._read_ring(ring, base + ring * self._ring_bytes, operations)
        return Reading(operations=operations, lost=lost)

    def _read_ring(self, ring: int, offset: int, into: list[Operation]) -> int:
        written = struct.unpack_from("<Q", self._memory, offset)[0]
        position = self._positions.get(ring, 0)
        self._positions[ring] = written
        lost = 0
        if written - position > self._entries:
            lost = written - position - self._entries
            position = written - self._entries
        records = offset + _RING_HEADER_BYTES
        mask = self._entries - 1
        for wanted in range(position, written):
            operation = Operation._make(
                _RECORD.unpack_from(self._memory, records + (wanted & mask) * _RECORD.size)
            )
            # The writer may have lapped us while we copied: the mark tells before, and a second look after.
            after = struct.unpack_from("<Q", self._memory, records + (wanted & mask) * _RECORD.size)[0]
            if operation.sequence != wanted + 1 or after != wanted + 1:
                lost += 1
                continue
            into.append(operation)
        return lost

    def alive(self) -> bool:
        """Whether the process that made the segment still runs: it holds the file's lock."""
        return _locked(self.path)

    def close(self) -> None:
        """Unmap; legal twice."""
        self._memory.close()


def find_segments(directory: Path) -> list[Path]:
    """The segments in a directory, live or left over, by name."""
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith(FILE_PREFIX))
    except OSError:
        return []


def sweep(directory: Path) -> list[Path]:
    """Remove the segments of processes that are gone, and return their paths."""
    removed = []
    for path in find_segments(directory):
        if not _locked(path):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        # Not ours to judge: the owner may well be alive.
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return True
        raise
    else:
        return False
    finally:
        os.close(descriptor)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
