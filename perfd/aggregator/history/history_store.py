"""What survives a restart of the aggregator: a database, written by a separate thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from perfd.aggregator.history.database import (
    HistoryDamagedError,
    HistoryDatabase,
    HistoryLockedError,
    HistoryUnavailableError,
    UnstorableError,
)
from perfd.aggregator.history.history_reader import HistoryReader
from perfd.aggregator.history.history_rows import (
    Statement,
    expired_row,
    retention_row,
    size_of,
    without_replaced,
)
from perfd.aggregator.history.unstored_rows import UnstoredRows, unstored
from perfd.aggregator.partition import SpareRows
from perfd.errors import PerfdError

_EARLIEST_UNIX_S = 1_577_836_800.0
"""The first of January 2020: a clock before it was never set."""
log = logging.getLogger(__name__)
MAX_QUEUED_BYTES = 64 << 20
"""What waits for a disk that is slow or full; agents keep what is beyond it."""
_OF_AGENTS = 0.75
"""The share of it for batches: alerts and captures, which only the aggregator has, are not sent again."""
_TRANSACTION_BYTES = 8 << 20
"""A transaction ends at this size, so that what waits for it is acknowledged soon."""
_COMMIT_EVERY_S = 0.02
"""Transactions of many agents are this far apart: each waits for the disk, and wakes each agent's stream. An
acknowledgment that comes later by so much delays no agent, which sends dozens of batches meanwhile."""
_RETRY_S = 1.0
"""To the next attempt to store, after a failed one. Chosen."""
_REPAIR_WITHIN_S = 120.0
"""How long a caller waits for the file to be salvaged; it goes on afterwards. Chosen."""


class RetentionClock:
    """The time by which rows are old: it goes at most as fast as the aggregator runs.

    A clock that is set ahead, or was wrong at the start, makes nothing old at once. The time in which no
    aggregator runs does not count either.
    """

    def __init__(self, reached_unix_s: float | None) -> None:
        """`reached_unix_s` is how far an earlier process came, or None."""
        self._reached_unix_s = reached_unix_s
        self._at_s: float | None = None

    def now(self, unix_s: float, monotonic_s: float) -> float | None:
        """The time, given what both clocks say; None while it cannot be known."""
        if unix_s < _EARLIEST_UNIX_S:
            return None
        passed_s = 0.0 if self._at_s is None else max(0.0, monotonic_s - self._at_s)
        self._at_s = monotonic_s
        reached = unix_s if self._reached_unix_s is None else self._reached_unix_s + passed_s
        self._reached_unix_s = min(unix_s, reached)
        return self._reached_unix_s


@dataclass(frozen=True, slots=True)
class _Group:
    statements: Sequence[Statement]
    done: Callable[[], None] | None
    size_bytes: int


class HistoryStore(HistoryReader):
    """Writes groups of rows in order, many groups a transaction; a database that fails does not stop ingest.

    `submit` may be called from any thread and never waits. What the database does not take waits and is
    tried again, up to `max_queued_bytes`, after `retry_s`, which doubles up to `max_retry_s`. Raises
    `PerfdError` when the database can never be used as configured.
    """

    def __init__(
        self,
        database: HistoryDatabase,
        *,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        retry_s: float = _RETRY_S,
        max_retry_s: float | None = None,
        spare: SpareRows | None = None,
    ) -> None:
        """`spare` keeps rows without `done` while the database takes none, for whoever opens it next."""
        super().__init__(database)
        self._max_queued_bytes = max_queued_bytes
        self._retry_s = self._next_retry_s = retry_s
        self._max_retry_s = max_retry_s or retry_s
        self._queue: deque[_Group] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._repair_wanted = False
        self._committed_s = 0.0
        self._problem: str | None = None
        self._retention = RetentionClock(None)
        self._spare = spare
        self._unstored = UnstoredRows()
        self._newest_kept: _Group | None = None
        self._kept = self._surely_kept = 0
        """How often `spare` was given rows, and up to which time it has them."""
        self.superseded = False
        """Whether another aggregator has written to it since this one read it."""
        self.failed_rows = 0
        """Rows that could not be written."""
        self.written_rows = 0
        try:
            self._open()
            self._take_spare()
        except (HistoryUnavailableError, HistoryDamagedError) as error:
            self._report(error)
        self._thread = threading.Thread(target=self._run, name="perfd-history", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether the newest write succeeded."""
        return self._problem is None

    @property
    def problem(self) -> str | None:
        """Why it cannot be written, in a sentence; None when it can."""
        reason = self._problem
        return None if reason is None else f"History cannot be written: {reason}"

    @property
    def closing(self) -> bool:
        """Whether it takes no more rows."""
        return self._closing

    @property
    def has_room(self) -> bool:
        """Whether it can be written and much more may be submitted."""
        return self.healthy and self._queued_bytes * 2 < self._max_queued_bytes

    def submit(self, statements: Sequence[Statement], done: Callable[[], None] | None = None) -> bool:
        """Write rows soon; False when there is no room for them: they are counted as failed.

        Rows with `done` can be submitted again, and leave room for others. It is called from the writer's
        thread when they are stored, or can never be; while the database takes nothing it is not called.
        """
        group = _Group(statements, done, sum(map(size_of, statements)))
        with self._changed:
            most_bytes = self._max_queued_bytes * (1.0 if done is None else _OF_AGENTS)
            has_room = not group.size_bytes or self._queued_bytes + group.size_bytes <= most_bytes
            if has_room and not self._closing:
                if not self._queue:
                    self._changed.notify_all()
                self._queue.append(group)
                self._queued_bytes += group.size_bytes
                if not self.healthy or self._unstored:
                    self._keep([group])
                return True
            self.failed_rows += len(statements)
        return False

    def wait_stored(self, timeout_s: float) -> bool:
        """Wait until what was submitted is stored; False without waiting when it cannot be, or if late."""
        stored = threading.Event()
        if not self.healthy or not self.submit((), stored.set):
            return False
        return self._wait(stored, timeout_s)

    def safe_within(self, timeout_s: float) -> Callable[[], bool]:
        """As `wait_stored`, of rows without `done`; returns whether they are stored by now, or in `spare`."""
        stored = threading.Event()
        with self._changed:
            # What waits is given to `spare` as a whole, and from then on each row.
            needed = self._kept + (not self._unstored)
            self.submit((), stored.set)
        if self.healthy:
            self._wait(stored, timeout_s)
        return lambda: stored.is_set() or self._surely_kept >= needed

    def _wait(self, stored: threading.Event, timeout_s: float) -> bool:
        if self._closing or stored.wait(timeout_s):
            return stored.is_set()
        # A database that hangs is known to be away only later.
        with self._changed:
            self._keep(self._queue)
        return False

    def expire(self, retention_s: float, now_unix_s: float, now_s: float) -> None:
        """Delete soon what is older than this, counting only time in which an aggregator ran."""
        if (reached := self._retention.now(now_unix_s, now_s)) is None:
            return
        self.submit([retention_row(reached), expired_row(reached - retention_s)])

    def repair(self) -> bool:
        """Let the writer repair a damaged database; returns whether there is a sound one now."""
        with self._changed:
            self._repair_wanted = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._repair_wanted, _REPAIR_WITHIN_S) and self.healthy

    def finish(self) -> None:
        """Accept no more rows: write those in the queue and close the database. Returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> bool:
        """As `finish`, and wait for it; False when that took longer. Legal twice."""
        self.finish()
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        if not ended:
            log.error(
                "History was not stored in time; its newest rows may be lost.",
                extra={"history": self._database.place},
            )
        return ended

    def _open(self) -> None:
        if not self._database.is_open:
            self._retention = RetentionClock(self._database.open())

    def _take_spare(self) -> None:
        """Write what an earlier aggregator could not, before anything is read."""
        if self._spare is None:
            return
        try:
            if (body := self._spare.take()) is None:
                return
            self._database.write(unstored(body, self.engine_state()))
        except UnstorableError:
            log.exception("Rows that an earlier aggregator kept cannot be written and are left out.")
        except PerfdError as error:
            # Going on without them, it would announce alerts again.
            self._database.close()
            raise PerfdError(str(error)) from error
        self._spare.clear()

    def _keep(self, groups: Iterable[_Group]) -> None:
        """Keep a copy of rows that are not sent again."""
        if self._spare is None:
            return
        with self._changed:
            added = [group for group in groups if group.done is None and self._unstored.add(group.statements)]
            if added:
                self._newest_kept = added[-1]
                self._kept += 1
                self._spare.keep(self._unstored.encoded(), partial(self._note_kept, self._kept))

    def _note_kept(self, times: int) -> None:
        self._surely_kept = max(times, self._surely_kept)

    def _run(self) -> None:
        while True:
            groups = self._next()
            if self._repair_wanted:
                self._repair()
            if not groups and self._closing:
                break
            if groups and not self._write(groups):
                if self._closing:
                    break
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._repair_wanted, self._next_retry_s)
                self._next_retry_s = min(2 * self._next_retry_s, self._max_retry_s)
        with self._changed:
            self.failed_rows += sum(len(group.statements) for group in self._queue)
            self._queue.clear()
        self._database.close()

    def _next(self) -> list[_Group]:
        """The oldest groups, as many as make a transaction; they stay in the queue until written."""
        groups: list[_Group] = []
        size_bytes = 0
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing or self._repair_wanted)
            pause_s = self._committed_s + _COMMIT_EVERY_S - monotonic()
            self._changed.wait_for(lambda: self._closing or self._repair_wanted, max(0.0, pause_s))
            for group in self._queue:
                groups.append(group)
                size_bytes += group.size_bytes
                if size_bytes >= _TRANSACTION_BYTES:
                    break
        return groups

    def _write(self, groups: Sequence[_Group]) -> bool:
        """Write groups and take them off the queue; False when the database does not take them now."""
        try:
            self._open()
            self._database.write(without_replaced([one for group in groups for one in group.statements]))
        except HistoryDamagedError:
            self._repair()
            return False
        except UnstorableError as error:
            if len(groups) > 1:
                # One of them holds what no table takes: the others go on without it.
                return all(self._write([group]) for group in groups)
            self.failed_rows += len(groups[0].statements)
            log.error(  # noqa: TRY400  (where it was raised says nothing that the error does not)
                "Rows of the history cannot be written and are left out.",
                extra={
                    "history": self._database.place,
                    "rows": len(groups[0].statements),
                    "error": str(error),
                },
            )
        except PerfdError as error:
            self._report(error)
            # After such an error a database may refuse to write until it is opened again.
            self._database.close()
            return False
        except Exception as error:
            # A thread that ends would leave everything unwritten, and say nothing.
            if self.healthy:
                log.exception(
                    "An unexpected error in writing history.", extra={"history": self._database.place}
                )
            self._report(HistoryUnavailableError(f"{type(error).__name__}: {error}"))
            self._database.close()
            return False
        else:
            self._committed_s = monotonic()
            self.written_rows += sum(len(group.statements) for group in groups)
            self._recovered()
            self._tidy()
        with self._changed:
            for group in groups:
                self._queue.popleft()
                self._queued_bytes -= group.size_bytes
            if self._spare is not None and any(group is self._newest_kept for group in groups):
                self._newest_kept = None
                self._unstored.clear()
                self._spare.clear()
        for group in groups:
            if group.done is not None:
                group.done()
        return True

    def _tidy(self) -> None:
        try:
            self._database.tidy()
        except PerfdError as error:
            self._report(error)

    def _repair(self) -> None:
        try:
            self._database.repair()
            self._recovered()
        except PerfdError as error:
            self._report(error)
            self._database.close()
        with self._changed:
            self._repair_wanted = False
            self._changed.notify_all()

    def _report(self, error: PerfdError) -> None:
        if self.healthy:
            log.error(
                "History cannot be written: everything else continues, and agents keep what is not stored.",
                extra={
                    "history": self._database.place,
                    "error": str(error),
                    "remedy": self._database.remedy,
                },
            )
        self.superseded = isinstance(error, HistoryLockedError)
        was_healthy, self._problem = self.healthy, str(error)
        if was_healthy:
            with self._changed:
                self._keep(self._queue)

    def _recovered(self) -> None:
        if not self.healthy:
            log.warning("History can be written again.", extra={"history": self._database.place})
        self._problem = None
        self._next_retry_s = self._retry_s
