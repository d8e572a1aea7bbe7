"""Reads the shared memory of perfd's NCCL plugin, as defined in the plugin's `layout.h`."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from enum import IntFlag
from pathlib import Path

from perfd.collector import PciAddress
from perfd.errors import NothingHere, Unavailable
from perfd.file_access import open_as
from perfd_collectors.nccl.segments.plugin_records import Communicator, ProcessCounters, ProcessInfo

MAGIC = b"NCL1"
"""The first bytes of a segment. This and all numbers up to `_RINGS_OFFSET` mirror `layout.h`."""
_MAGIC = int.from_bytes(MAGIC, "little")
_LAYOUT_VERSION = 1
"""PERFD_LAYOUT_VERSION of the plugin; other layouts are not read."""
_HEADER_BYTES = 4096
_COMMUNICATORS = 256
_RING_HEADER_BYTES = 64
"""Sizes of the segment's parts, as in layout.h of the plugin."""

_HEADER = struct.Struct("<IIQIIIIiiiIQQ")
_MODE = struct.Struct("<I")
_MODE_OFFSET = 128
"""Where the header has the recording mode."""
_FLOCK = struct.Struct("@hhqqi4x")
"""The kernel's `struct flock`: type, whence, start, length, pid."""
_COUNTERS = struct.Struct("<IIQQQQQ")
_COUNTERS_OFFSET = 256
"""Where the header has the counters."""
_COMMUNICATOR = struct.Struct("<QiiiIQ24sQ")
RECORD_BYTES = 128
"""Of one operation; its fields are in `operations/operation_columns.py`."""
_DEVICE_KNOWN = 1 << 63
"""Bit that says that the rest of the word is a PCI address."""
_RINGS_OFFSET = _HEADER_BYTES + _COMMUNICATORS * _COMMUNICATOR.size

_MAX_RINGS = 8
"""PERFD_RINGS_MAX of the plugin. A sparse file of another user can claim 2^32."""


class RecordingMode(IntFlag):
    """What the agent asks the plugin to record; the bits of `PERFD_RECORD_*` in `layout.h`."""

    NOTHING = 0
    OPERATIONS = 1
    GPU_TIME = 2


class Segment:
    """One process's open segment. Raises `Unavailable` when the file does not have this layout.

    `NothingHere` means that the file belongs to another user or is being created. Segments are read, not
    memory-mapped: truncating a mapped file would kill the agent with SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writable = True
        self._table = b""
        self._communicators: tuple[Communicator, ...] = ()
        """What the table says, which rarely changes."""
        try:
            self._file: int | None = self._open()
        except OSError as error:
            raise NothingHere(
                f"Cannot open {path}: {error.strerror}; run the agent as the job's user."
            ) from error
        try:
            self.process = self._read_header()
        except Unavailable:
            self.close()
            raise

    def _open(self) -> int:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            # Root without CAP_DAC_OVERRIDE may not write to a user's file; its owner may.
            return open_as(self.path.lstat().st_uid, self.path, os.O_RDWR | flags)
        except PermissionError:
            # Without CAP_SETUID too, as on the nodes of Kubernetes: to read is enough.
            file = os.open(self.path, os.O_RDONLY | flags)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                raise
            file = os.open(self.path, os.O_RDONLY | flags)
        self._writable = False
        return file

    def _read_header(self) -> ProcessInfo:
        header = self._bytes(0, _HEADER_BYTES)
        if not any(header[: len(MAGIC)]):
            raise NothingHere(f"{self.path} is being created.")
        if len(header) < _HEADER_BYTES:
            raise Unavailable(f"{self.path} is too short for a segment of perfd's NCCL plugin.")
        fields = _HEADER.unpack_from(header)
        magic, version, file_bytes, pid, entries, record_bytes, communicators, rank, local, world = fields[
            :10
        ]
        if magic != _MAGIC or version != _LAYOUT_VERSION:
            raise Unavailable(
                f"{self.path} has layout {magic:#x}/{version}, not {_MAGIC:#x}/{_LAYOUT_VERSION}: "
                "use a plugin and an agent of the same perfd version."
            )
        sound = (
            record_bytes == RECORD_BYTES and communicators == _COMMUNICATORS and entries & (entries - 1) == 0
        )
        if not sound or entries == 0 or file_bytes > self._size():
            raise Unavailable(f"{self.path} is inconsistent: truncated, or not of perfd's NCCL plugin.")
        self.entries: int = entries
        """Records of a ring buffer, a power of two."""
        self._ring_bytes: int = _RING_HEADER_BYTES + entries * RECORD_BYTES
        return ProcessInfo(
            pid=pid,
            rank=_or_none(rank),
            local_rank=_or_none(local),
            world_size=_or_none(world),
            profiler_version=fields[10],
            unix_ns=fields[11],
            monotonic_ns=fields[12],
        )

    def communicators(self) -> tuple[Communicator, ...]:
        """Every communicator that the process created and that is still in the table."""
        table = self._bytes(_HEADER_BYTES, _COMMUNICATORS * _COMMUNICATOR.size)
        if table != self._table:
            self._table, self._communicators = table, tuple(_communicators(_whole(table, _COMMUNICATOR)))
        return self._communicators

    def counters(self) -> ProcessCounters:
        """The plugin's counters."""
        counted = self._bytes(_COUNTERS_OFFSET, _COUNTERS.size).ljust(_COUNTERS.size, b"\0")
        _, _, started, recorded, incomplete, dropped, stale = _COUNTERS.unpack(counted)
        return ProcessCounters(
            started=started, recorded=recorded, incomplete=incomplete, dropped=dropped, stale=stale
        )

    def recording_mode(self) -> RecordingMode:
        """What the plugin records now."""
        known = RecordingMode.OPERATIONS | RecordingMode.GPU_TIME
        return RecordingMode(int.from_bytes(self._bytes(_MODE_OFFSET, _MODE.size), "little") & known)

    def set_recording_mode(self, mode: RecordingMode) -> None:
        """Switch recording, if the file can be written; the plugin applies it at its next operation."""
        if self._file is not None and self._writable:
            os.pwrite(self._file, _MODE.pack(mode), _MODE_OFFSET)

    def take_control(self) -> bool:
        """Whether this reader may switch recording: one reader at a time may, until it closes the segment."""
        if self._file is None:
            return False
        # An open-file-description lock: a process lock would be lost when `remove_left_over` closes the file.
        lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _MODE_OFFSET, _MODE.size, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return True  # The file system does not support such locks.
        return True

    def fileno(self) -> int:
        """The open file; raises `Unavailable` once it is closed."""
        if self._file is None:
            raise Unavailable(f"{self.path} is closed.")
        return self._file

    def status(self) -> os.stat_result:
        """Status of the open file, even if renamed; raises as `fileno` does."""
        return os.fstat(self.fileno())

    def rings(self) -> int:
        """How many ring buffers there are."""
        stated = int.from_bytes(self._bytes(_COUNTERS_OFFSET, 4), "little")
        return min(stated, (self._size() - _RINGS_OFFSET) // self._ring_bytes, _MAX_RINGS)

    def written(self, ring: int) -> int:
        """How many records a ring buffer was given since the process started."""
        return int.from_bytes(self._bytes(self._ring_offset(ring), 8), "little")

    def place(self, ring: int, number: int) -> tuple[int, int]:
        """Where in the file a record of a ring buffer is, and after how many from it on the ring wraps."""
        slot = number & (self.entries - 1)
        return self._ring_offset(ring) + _RING_HEADER_BYTES + slot * RECORD_BYTES, self.entries - slot

    def identity(self) -> tuple[int, int]:
        """Device and inode, which identify the file under any name; raises as `fileno` does."""
        status = self.status()
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Close the file; legal twice."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _ring_offset(self, ring: int) -> int:
        return _RINGS_OFFSET + ring * self._ring_bytes

    def _bytes(self, offset: int, count: int) -> bytes:
        """At most `count` bytes: fewer at the end of the file, none once it is closed."""
        if self._file is None:
            return b""
        try:
            return os.pread(self._file, count, offset)
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}.") from error

    def _size(self) -> int:
        return 0 if self._file is None else os.fstat(self._file).st_size


def _whole(data: bytes, kind: struct.Struct) -> bytes:
    return data[: len(data) - len(data) % kind.size]


def _pci_address(word: int) -> PciAddress | None:
    if not word & _DEVICE_KNOWN:
        return None
    return PciAddress(domain=word >> 16 & 0xFFFF_FFFF, bus=word >> 8 & 0xFF, device=word & 0xFF)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number


def _communicators(table: bytes) -> Iterator[Communicator]:
    for index, (identity, rank, ranks, nodes, state, _, name, device) in enumerate(
        _COMMUNICATOR.iter_unpack(table)
    ):
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
            device=_pci_address(device),
        )
