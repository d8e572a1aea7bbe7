"""The buffer on disk between collectors and the aggregator: what is in it survives both."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from perfd.agent.spool.spool_file import open_file
from perfd.agent.spool.spool_identity import Life, begin_life, machine_fingerprint, write_life

log = logging.getLogger(__name__)

MAX_MEMORY_BYTES = 4 * 1024 * 1024
"""Bytes of the newest batches kept in memory while the disk is full."""
_BATCHES_BETWEEN_LOOKS = 10
"""After each so many, it is checked that the spool is in its file. Chosen."""
_ALL = -1
"""As a limit, to SQLite too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch as sent."""

    sequence: int
    records: int
    payload: bytes

    @property
    def checksum(self) -> int:
        """Over the numbers too: either may be damaged on the disk, and the aggregator trusts both."""
        return zlib.crc32(self.payload, zlib.crc32(b"%d %d" % (self.sequence, self.records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStats:
    """How full the spool is, and what was lost since it was opened."""

    batches: int
    payload_bytes: int
    dropped_batches: int
    dropped_records: int
    writable: bool
    """False while batches are in memory only, because they cannot be written to disk."""


class Spool:
    """Batches by sequence number, limited in bytes; thread-safe.

    One agent at a time may have `directory` open. Raises `SpoolError`, with what to do,
    if it cannot be opened. After that nothing raises: what cannot be written to disk stays
    in memory, up to a limit, and what exceeds either limit is dropped, oldest first, and
    counted.

    A spool that was written on another `machine`, as in a copied disk image, gets a new identity.
    """

    def __init__(self, directory: Path, *, max_bytes: int, machine: str | None = None) -> None:
        self._file = open_file(directory)
        self._disk_bytes = max_bytes
        self._max_bytes = min(max_bytes, MAX_MEMORY_BYTES) if self._file.in_memory else max_bytes
        self._database = self._file.database
        self._lock = threading.Lock()
        self._unwritten: deque[StoredBatch] = deque()
        self._bookmarks: dict[str, str] = {}
        """Those that are not written yet."""
        self._dropped_batches = 0
        self._dropped_records = 0
        self._writable = True
        self._agent_id: str
        self._last_sequence: int
        self._agent_id, self._last_sequence = self._database.execute(
            "SELECT agent_id, last_sequence FROM identity"
        ).fetchone()
        self._batches, self._bytes = self._database.execute(
            "SELECT count(*), coalesce(sum(length(payload)), 0) FROM batch"
        ).fetchone()
        self._opened_after: int = self._last_sequence
        self._machine = machine_fingerprint() if machine is None else machine
        self._life = self._begin_life()

    @property
    def agent_id(self) -> str:
        """The identity that the sequence numbers count within."""
        return self._agent_id

    @property
    def epochs(self) -> tuple[str, str]:
        """The secrets of this life of the spool and of the newest one that an aggregator welcomed."""
        return self._life.epoch, self._life.previous_epoch

    def welcomed(self) -> None:
        """Note that an aggregator knows the epoch of this life."""
        with self._lock:
            if self._life.previous_epoch != self._life.epoch:
                self._start_life(Life(epoch=self._life.epoch, previous_epoch=self._life.epoch, copied=False))

    @property
    def last_sequence(self) -> int:
        """The newest sequence assigned; 0 for none."""
        return self._last_sequence

    @property
    def is_half_full(self) -> bool:
        """Whether more than half of what the spool may hold is used."""
        return bool(2 * self._bytes > self._max_bytes)

    @property
    def opened_after(self) -> int:
        """The newest sequence of an earlier life of this spool, according to the disk."""
        return self._opened_after

    @property
    def first_sequence(self) -> int:
        """The oldest sequence that can still be sent; the next one if there is none."""
        first = self.read_after(0, limit=1)
        return first[0].sequence if first else self._last_sequence + 1

    def bookmarks(self) -> Mapping[str, str]:
        """Each collector's read position when the newest batch on disk was stored."""
        with self._lock:
            rows = self._database.execute("SELECT collector, text FROM bookmark").fetchall()
        return dict(rows)

    def keep_bookmarks(self, bookmarks: Mapping[str, str]) -> None:
        """Store these with the next batch."""
        with self._lock:
            self._bookmarks.update(bookmarks)

    def append(
        self,
        encode: Callable[[int], bytes],
        *,
        records: int,
        bookmarks: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Store the batch that `encode` makes for the next sequence number; returns that number.

        Errors of `encode` are passed on, and use no number. `bookmarks` are on disk when the batch is.
        """
        with self._lock:
            payload = encode(self._last_sequence + 1)
            self._last_sequence += 1
            batch = StoredBatch(sequence=self._last_sequence, records=records, payload=payload)
            self._unwritten.append(batch)
            self._bookmarks.update(bookmarks)
            self._write()
            return batch.sequence

    def read_after(self, sequence: int, *, limit: int) -> Sequence[StoredBatch]:
        """The oldest batches after `sequence`, in order."""
        with self._lock:
            return self._read_after(sequence, limit)

    def acknowledge(self, sequence: int) -> None:
        """Delete every batch up to and including `sequence`: the aggregator has it."""
        with self._lock:
            while self._unwritten and self._unwritten[0].sequence <= sequence:
                self._unwritten.popleft()
            if not self._batches:
                return
            try:
                with self._transaction():
                    batches, size, _ = self._delete_through(sequence)
            except sqlite3.Error as error:
                self._report(error)
            else:
                self._batches -= batches
                self._bytes -= size

    def renew(self, renumber: Callable[[bytes, int], bytes], *, all_batches: bool = False) -> None:
        """Take a new identity, and number the batches of this life from 1 within it, or all existing ones.

        Needed if the disk lost sequence numbers that the aggregator has seen, as after a
        power failure: under the old identity it would take new batches for repeats. Batches
        of an earlier life are dropped with the old identity. Also needed if another spool
        has the old identity; no batch is dropped then.
        """
        with self._lock:
            batches = self._read_after(0 if all_batches else self._opened_after, _ALL)
            self._start_life(Life(epoch=secrets.token_hex(16), previous_epoch="", copied=False))
            self._agent_id = str(uuid.uuid4())
            self._last_sequence = self._opened_after = 0
            self._unwritten.clear()
            for batch in batches:
                self._last_sequence += 1
                payload = renumber(batch.payload, self._last_sequence)
                self._unwritten.append(replace(batch, sequence=self._last_sequence, payload=payload))
            try:
                with self._transaction():
                    self._database.execute("DELETE FROM batch")
            except sqlite3.Error as error:
                self._report(error)
            else:
                self._batches = self._bytes = 0
            self._write()

    def stats(self) -> SpoolStats:
        """How full the spool is, and what was lost."""
        with self._lock:
            return SpoolStats(
                batches=self._batches + len(self._unwritten),
                payload_bytes=self._bytes + sum(len(batch.payload) for batch in self._unwritten),
                dropped_batches=self._dropped_batches,
                dropped_records=self._dropped_records,
                writable=self._writable and not self._file.in_memory,
            )

    def close(self) -> None:
        """Write what can be written and release the directory; may be called twice."""
        with self._lock:
            if self._unwritten:
                self._write()
            self._file.close()

    def _begin_life(self) -> Life:
        try:
            life = begin_life(self._database, self._machine)
            if life.copied:
                self._leave_to_original()
        except sqlite3.Error as error:
            # An epoch that cannot be stored would make the next life look like a copy.
            self._report(error)
            return Life(epoch="", previous_epoch="", copied=False)
        return life

    def _leave_to_original(self) -> None:
        """Take a new identity; the batches belong to the machine that the spool was copied from."""
        log.warning(
            "The spool was written on another machine: this agent takes a new identity "
            "and leaves the spooled batches to the other one.",
            extra={"path": self._file.path, "batches": self._batches},
        )
        agent_id = str(uuid.uuid4())
        with self._transaction():
            self._database.execute("DELETE FROM batch")
            self._database.execute("UPDATE identity SET agent_id = ?, last_sequence = 0", (agent_id,))
        self._agent_id = agent_id
        self._last_sequence = self._opened_after = 0
        self._batches = self._bytes = 0

    def _start_life(self, life: Life) -> None:
        self._life = life
        try:
            write_life(self._database, self._machine, life.epoch, life.previous_epoch)
        except sqlite3.Error as error:
            self._report(error)

    def _read_after(self, sequence: int, limit: int) -> Sequence[StoredBatch]:
        found: list[StoredBatch] = []
        while (limit == _ALL or len(found) < limit) and (rows := self._rows_after(sequence, limit)):
            for batch, checksum in rows:
                if checksum == batch.checksum:
                    found.append(batch)
                else:
                    self._skip(batch)
            sequence = rows[-1][0].sequence
        found.extend(batch for batch in self._unwritten if batch.sequence > sequence)
        return found if limit == _ALL else found[:limit]

    def _rows_after(self, sequence: int, limit: int) -> Sequence[tuple[StoredBatch, int]]:
        """The oldest batches on disk after `sequence`, each with the checksum that is beside it."""
        try:
            # A damaged row may hold values of another type than was written.
            rows = self._database.execute(
                "SELECT sequence, CAST(records AS INTEGER), CAST(payload AS BLOB), CAST(crc32 AS INTEGER)"
                " FROM batch WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (sequence, limit),
            ).fetchall()
        except sqlite3.Error as error:
            self._report(error)
            return ()
        return [
            (StoredBatch(sequence=number, records=records, payload=payload), checksum)
            for number, records, payload, checksum in rows
        ]

    def _delete_through(self, sequence: int) -> tuple[int, int, int]:
        """Delete through a sequence; returns batches, bytes and records, and raises `sqlite3.Error`."""
        batches, size, records = self._database.execute(
            "SELECT count(*), coalesce(sum(length(payload)), 0), coalesce(sum(records), 0)"
            " FROM batch WHERE sequence <= ?",
            (sequence,),
        ).fetchone()
        self._database.execute("DELETE FROM batch WHERE sequence <= ?", (sequence,))
        return batches, size, records

    def _delete_oldest(self, excess_bytes: int) -> tuple[int, int, int]:
        """Delete the oldest until this many bytes are free; returns and raises as `_delete_through`."""
        if excess_bytes <= 0:
            return 0, 0, 0
        through = 0
        for sequence, size in self._database.execute(
            "SELECT sequence, length(payload) FROM batch ORDER BY sequence"
        ):
            through = sequence
            excess_bytes -= size
            if excess_bytes <= 0:
                break
        return self._delete_through(through)

    def _skip(self, batch: StoredBatch) -> None:
        """Drop a damaged batch: the aggregator could not read it."""
        log.warning(
            "A batch in the spool is damaged: it is skipped, and its records are counted as dropped.",
            extra={"path": self._file.path, "sequence": batch.sequence},
        )
        try:
            self._database.execute("DELETE FROM batch WHERE sequence = ?", (batch.sequence,))
        except sqlite3.Error as error:
            self._report(error)
            return
        self._batches -= 1
        self._bytes -= len(batch.payload)
        self._dropped_batches += 1
        # The stored count itself may be damaged; no record has less than a byte.
        self._dropped_records += min(max(batch.records, 0), len(batch.payload))

    def _write(self) -> None:
        if self._last_sequence % _BATCHES_BETWEEN_LOOKS == 0 and self._file.settle():
            self._database, self._max_bytes = self._file.database, self._disk_bytes
        new_bytes = sum(len(batch.payload) for batch in self._unwritten)
        try:
            with self._transaction():
                batches, size, records = self._delete_oldest(self._bytes + new_bytes - self._max_bytes)
                self._database.executemany(
                    "INSERT INTO batch (sequence, records, payload, crc32) VALUES (?, ?, ?, ?)",
                    [(one.sequence, one.records, one.payload, one.checksum) for one in self._unwritten],
                )
                self._database.execute(
                    "UPDATE identity SET agent_id = ?, last_sequence = ?",
                    (self._agent_id, self._last_sequence),
                )
                self._database.executemany(
                    "INSERT OR REPLACE INTO bookmark (collector, text) VALUES (?, ?)", self._bookmarks.items()
                )
        except sqlite3.Error as error:
            self._report(error)
            self._trim_memory()
            return
        self._batches += len(self._unwritten) - batches
        self._bytes += new_bytes - size
        self._count_dropped(batches, records)
        self._unwritten.clear()
        self._bookmarks.clear()
        if not self._writable:
            self._writable = True
            log.info("The spool is writable again.", extra={"path": self._file.path})

    def _trim_memory(self) -> None:
        size = sum(len(batch.payload) for batch in self._unwritten)
        while size > MAX_MEMORY_BYTES:
            batch = self._unwritten.popleft()
            size -= len(batch.payload)
            self._count_dropped(1, batch.records)

    def _count_dropped(self, batches: int, records: int) -> None:
        if batches and not self._dropped_batches:
            log.warning(
                "The spool is full: the oldest batches are dropped, and counted in /metrics.",
                extra={"path": self._file.path, "max_bytes": self._max_bytes},
            )
        self._dropped_batches += batches
        self._dropped_records += records

    def _report(self, error: sqlite3.Error) -> None:
        if self._writable:
            self._writable = False
            log.error(
                "The spool cannot be written: new batches stay in memory, and a long outage of the "
                "aggregator will lose some. Free disk space.",
                extra={"path": self._file.path, "reason": str(error)},
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
