"""Collects records from all collectors and turns them into numbered batches in the spool."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from perfd.agent.collection.batch_pace import BatchPace
from perfd.agent.spool import Spool
from perfd.errors import PerfdError, WireError
from perfd.model import Batch, Record, SampleTable
from perfd.wire import convert
from perfd.wire.service import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

Tap: TypeAlias = Callable[[Sequence[Record]], None]
"""Another consumer of the collectors' records; called in the thread that flushes."""

MAX_PENDING_RECORDS = 100_000
"""While the disk refuses batches, records beyond it are dropped and counted, so that memory stays bounded."""
_FLUSH_EARLY_AT = MAX_PENDING_RECORDS // 4
_SPLIT_ABOVE_BYTES = 1024 * 1024
"""A batch of several records is divided above it, far below what gRPC and NATS take as one message."""
_HEAD_BYTES = 64
"""More than a batch takes besides its records: four numbers of ten bytes at most, and their tags."""


class Batcher:
    """A bounded queue of encoded records, flushed into batches. `add` may be called from any thread.

    `pace` learns of records as they come: they may be what the next batch must not wait for.
    """

    def __init__(
        self,
        spool: Spool,
        pace: BatchPace | None = None,
        *,
        taps: Sequence[Tap] = (),
        max_pending: int = MAX_PENDING_RECORDS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._spool = spool
        self._pace = pace
        self._taps = list(taps)
        self._pending: deque[tuple[Record, bytes]] = deque()
        self._bookmarks: dict[str, str] = {}
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._crowded = threading.Event()
        self._dropped_records = 0

    @property
    def dropped_records(self) -> int:
        """Records dropped since the start, in this queue and in the spool."""
        return self._dropped_records + self._spool.stats().dropped_records

    def add(
        self, records: Sequence[Record], bookmarks: Mapping[str, str] = MappingProxyType({})
    ) -> WireError | None:
        """Queue the records that can be sent; returns why the first of the others cannot.

        If there are too many, the oldest are dropped and counted. `bookmarks`, by collector, are stored
        together with them.
        """
        encoded, refused = convert.encode_records(records)
        if self._pace is not None:
            # Real time paces batches, also where the records' clock is a virtual one.
            self._pace.take([record for record, _ in encoded], time.monotonic())
        with self._lock:
            self._pending.extend(encoded)
            self._bookmarks.update(bookmarks)
            while len(self._pending) > self._max_pending:
                self._pending.popleft()
                self._dropped_records += 1
            crowded = len(self._pending) >= _FLUSH_EARLY_AT
        if crowded:
            self._crowded.set()
        return refused

    def wait(self, timeout_s: float) -> bool:
        """Return after `timeout_s`, or earlier and true if the queue is so full that a flush cannot wait."""
        return self._crowded.wait(timeout_s)

    def wake(self) -> None:
        """Make `wait` return."""
        self._crowded.set()

    def flush(self, now_unix_ns: int) -> int | None:
        """Put the queue into the spool, as one batch if it is not too long.

        Returns the sequence of the last batch, or None if the queue was empty.
        """
        with self._lock:
            self._crowded.clear()
            encoded = list(self._pending)
            self._pending.clear()
            bookmarks, self._bookmarks = self._bookmarks, {}
        if not encoded:
            return None
        merged = merge_tables(record for record, _ in encoded)
        self._hand_to_taps(merged)
        if len(merged) < len(encoded):
            known = {id(record): data for record, data in encoded}
            encoded = [(one, known.get(id(one)) or convert.encode_record(one)) for one in merged]
        return self._store(encoded, bookmarks, now_unix_ns)

    def store(self, record: Record, now_unix_ns: int) -> None:
        """Put a record into the spool now, bypassing the queue and the other consumers."""
        encoded, refused = convert.encode_records([record])
        if refused is not None:
            self._drop(record, str(refused))
        self._store(encoded, {}, now_unix_ns)

    def _hand_to_taps(self, records: Sequence[Record]) -> None:
        for tap in list(self._taps):
            try:
                tap(records)
            except (PerfdError, OSError) as error:
                self._taps.remove(tap)
                log.error(  # noqa: TRY400  (the reason is a sentence; a traceback adds nothing)
                    "A consumer of records failed and gets no more.", extra={"reason": str(error)}
                )

    def _store(
        self, encoded: Sequence[tuple[Record, bytes]], bookmarks: Mapping[str, str], now_unix_ns: int
    ) -> int | None:
        """Append to the spool, as several batches where one would be too long; returns the last sequence."""
        batches: list[list[bytes]] = []
        size = 0
        for record, data in encoded:
            if len(data) + _HEAD_BYTES > min(self._max_message_bytes, MAX_MESSAGE_BYTES):
                self._drop(record, f"It has {len(data)} bytes.")
                continue
            size += len(data)
            if not batches or size + _HEAD_BYTES > min(self._max_message_bytes, _SPLIT_ABOVE_BYTES):
                batches.append([])
                size = len(data)
            batches[-1].append(data)
        sequence = None
        for records in batches:
            batch = Batch(
                sequence=0, sent_unix_ns=now_unix_ns, records=(), dropped_records=self.dropped_records
            )
            sequence = self._spool.append(
                partial(_numbered, batch, records),
                records=len(records),
                bookmarks=bookmarks if records is batches[-1] else {},
            )
        if not batches:
            self._spool.keep_bookmarks(bookmarks)
        return sequence

    def _drop(self, record: Record, reason: str) -> None:
        self._dropped_records += 1
        log.warning(
            "A record was dropped because it cannot be sent.",
            extra={"record": type(record).__name__, "reason": reason},
        )


def _numbered(batch: Batch, records: Sequence[bytes], sequence: int) -> bytes:
    return convert.encode_message(replace(batch, sequence=sequence), records)


@dataclass(slots=True)
class _Sweep:
    """Tables of one kind that name no entity twice."""

    place: int
    """Of the first one among all records."""
    tables: list[SampleTable] = field(default_factory=list)
    entities: set[str] = field(default_factory=set)


def merge_tables(records: Iterable[Record]) -> list[Record]:
    """The same records, with tables of one scope and the same columns joined row by row, to whole sweeps.

    A table with an entity that the sweep before has begins the next one: it is of the same form as that, so
    that two cost the aggregator less than half of a joined one. A joined table takes the place of its first
    part; rows keep their order.
    """
    merged: list[Record] = []
    sweeps: list[_Sweep] = []
    newest: dict[tuple[object, ...], _Sweep] = {}
    for record in records:
        if not isinstance(record, SampleTable):
            merged.append(record)
            continue
        key: tuple[object, ...] = (record.scope, *record.columns)
        sweep = newest.get(key)
        if sweep is None or not sweep.entities.isdisjoint(record.entities):
            sweep = newest[key] = _Sweep(place=len(merged))
            sweeps.append(sweep)
            merged.append(record)
        sweep.tables.append(record)
        sweep.entities.update(record.entities)
    for sweep in sweeps:
        if len(sweep.tables) > 1:
            merged[sweep.place] = _join(sweep.tables)
    return merged


def _join(tables: Sequence[SampleTable]) -> SampleTable:
    columns: dict[str, array[float]] = {name: array("d") for name in tables[0].columns}
    times = array("q")
    entities: list[str] = []
    for table in tables:
        times.extend(array("q", table.times_unix_ns))
        entities.extend(table.entities)
        for name, values in table.columns.items():
            columns[name].extend(array("d", values))
    return SampleTable(scope=tables[0].scope, times_unix_ns=times, entities=entities, columns=columns)
