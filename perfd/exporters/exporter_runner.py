"""Runs each exporter in its own thread, so that none can slow or break the aggregator."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

from perfd.exporters.exporter import Exporter, ExporterTally, Round

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ExporterStatus(ExporterTally):
    """The counters of one exporter and of its rounds."""

    name: str
    rounds: int
    failed_rounds: int
    dropped_rounds: int
    queued_rounds: int
    seconds: float


class ExporterRunner:
    """Feeds one exporter from a bounded queue. `offer` never waits; if full, the oldest round is dropped.

    Alert changes and final summaries of a dropped round move to the next one.
    """

    def __init__(self, name: str, exporter: Exporter, tally: ExporterTally, *, max_queued: int = 30) -> None:
        self.name = name
        self._exporter = exporter
        self._tally = tally
        self._max_queued = max_queued
        self._queue: deque[Round] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._rounds = self._failed = self._dropped = 0
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._work, name=f"perfd-export-{name}", daemon=True)
        self._thread.start()

    def offer(self, round_: Round) -> None:
        """Queue a round."""
        with self._changed:
            if self._closing:
                return
            self._queue.append(round_)
            if len(self._queue) > self._max_queued:
                oldest = self._queue.popleft()
                self._queue[0] = self._queue[0].after(oldest)
                self._dropped += 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Take no more rounds: export what is queued and close the exporter. Returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Like `finish`, and wait at most this long; False if the exporter did not end."""
        self.finish()
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        if not ended:
            log.warning(
                "An exporter did not end in time; its queued data may be lost.",
                extra={"exporter": self.name, "queued_rounds": len(self._queue)},
            )
        return ended

    def status(self) -> ExporterStatus:
        """The counters so far."""
        with self._changed:
            return ExporterStatus(
                name=self.name,
                rounds=self._rounds,
                failed_rounds=self._failed,
                dropped_rounds=self._dropped,
                queued_rounds=len(self._queue),
                seconds=self._seconds,
                **asdict(self._tally),
            )

    def _work(self) -> None:
        broken = False
        while (round_ := self._next()) is not None:
            started_s = time.perf_counter()
            error = self._attempt(round_)
            with self._changed:
                self._rounds += 1
                self._failed += error is not None
                self._seconds += time.perf_counter() - started_s
                self._changed.notify_all()
            if error is not None and not broken:
                self._report(error)
            broken = error is not None
        try:
            self._exporter.close()
        except BaseException as error:  # noqa: BLE001  As in `_attempt`.
            self._report(error)

    def _next(self) -> Round | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            return self._queue.popleft()

    def _attempt(self, round_: Round) -> BaseException | None:
        try:
            self._exporter.export(round_)
        except BaseException as error:  # noqa: BLE001  An exporter of others may raise anything, SystemExit too.
            return error
        return None

    def _report(self, error: BaseException) -> None:
        log.error(
            "An exporter failed; the next round tries again.",
            exc_info=error,
            extra={"exporter": self.name},
        )
