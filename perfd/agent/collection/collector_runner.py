"""Runs many collectors on schedule, each in its own thread: one that hangs does not block the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from perfd.agent.collection.collector_task import HEALTH_INTERVAL_S, CollectorTask, Deliver
from perfd.clock import Clock, Schedule, common_start_s
from perfd.collector import OnUnavailable
from perfd.errors import Unavailable
from perfd.model import CollectorHealth

_OPEN_TIMEOUT_S = 30.0
"""To open one collector; a driver that hangs never answers."""
_HANG_AFTER_S = 10.0
"""A collector hangs after this or after `_HANG_AFTER_INTERVALS`, whichever is longer."""
_HANG_AFTER_INTERVALS = 3
"""One late reading is usual on a busy node, three in a row are not."""


class Runner:
    """Calls each task at its interval; the task hands its records to `deliver`.

    `start` gives each task a thread; a driver that owns the time calls `run_due`
    instead, and everything happens in its thread.
    """

    def __init__(self, tasks: Sequence[CollectorTask], deliver: Deliver, clock: Clock) -> None:
        self._tasks = tasks
        self._deliver = deliver
        self._clock = clock
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._schedules: dict[CollectorTask, Schedule] = {}
        self._hang_reported_s: dict[CollectorTask, float] = {}

    def start(self) -> None:
        """Start collecting; raises `Unavailable` if a required source is missing."""
        openings = [_Opening(task) for task in self._tasks]
        for task, opening in zip(self._tasks, openings, strict=True):
            thread = threading.Thread(
                target=self._loop, args=(task, opening), name=f"perfd-{task.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        for opening in openings:
            opening.result(_OPEN_TIMEOUT_S)

    def stop(self, timeout_s: float, *, first_within_s: float = 0.0) -> list[str]:
        """Collect once more and end all threads; returns the names of collectors that hang.

        Those are abandoned: a thread that waits in a driver cannot be ended. A collector that reads
        for the first time has `first_within_s` from the beginning of that: it may start a process.
        """
        for task in self._tasks:
            task.announce_end()
        self._stop.set()
        deadline_s = time.monotonic() + timeout_s
        for task, thread in zip(self._tasks, self._threads, strict=False):
            left_s = max(deadline_s - time.monotonic(), first_within_s - self._first_reading_s(task))
            thread.join(max(0.0, left_s))
        if not self._threads:
            for task in self._tasks:
                task.close()
        return [thread.name.removeprefix("perfd-") for thread in self._threads if thread.is_alive()]

    def run_due(self, now_s: float) -> None:
        """Run every task that is due at `now_s`, in the caller's thread."""
        for task in self._tasks:
            schedule = self._schedules.setdefault(task, Schedule(interval_s=task.interval_s, start_s=now_s))
            if schedule.due(now_s):
                task.miss(schedule.take(now_s))
                task.deliver_due(self._deliver, now_s)

    def hanging(self, now_s: float) -> Sequence[CollectorHealth]:
        """Reports each collector that has been running for too long, every few seconds."""
        verdicts = []
        for task in self._tasks:
            since_s = task.state.running_since_s
            limit_s = max(_HANG_AFTER_S, _HANG_AFTER_INTERVALS * task.interval_s)
            reported_s = self._hang_reported_s.get(task, float("-inf"))
            if since_s is None or now_s - since_s < limit_s or now_s - reported_s < HEALTH_INTERVAL_S:
                continue
            self._hang_reported_s[task] = now_s
            verdicts.append(
                CollectorHealth(
                    collector=task.name,
                    time_unix_ns=self._clock.unix_ns(),
                    duration_s=now_s - since_s,
                    success=False,
                    message=f"The collector has been running for {now_s - since_s:.0f} s without an answer.",
                )
            )
        return verdicts

    def _loop(self, task: CollectorTask, opening: _Opening) -> None:
        if not opening.run():
            return
        schedule = Schedule(interval_s=task.interval_s, start_s=common_start_s(task.interval_s, self._clock))
        if not self._stop.is_set():
            now_s = self._clock.monotonic_s()
            # Changes between two readings that are too close are noise.
            schedule.take(now_s + task.interval_s / 2)
            task.deliver_due(self._deliver, now_s)
        while not task.state.finished:
            if self._stop.wait(max(0.0, schedule.next_s - self._clock.monotonic_s())):
                # The last lines of a log are often the ones that matter.
                task.deliver_due(self._deliver, self._clock.monotonic_s())
                break
            now_s = self._clock.monotonic_s()
            if schedule.due(now_s):
                task.miss(schedule.take(now_s))
                task.deliver_due(self._deliver, now_s)
        task.close()

    def _first_reading_s(self, task: CollectorTask) -> float:
        """For how long a collector has been reading for the first time; infinite for one that has read."""
        state = task.state
        if state.success is not None or state.finished:
            return float("inf")
        now_s = self._clock.monotonic_s()
        return now_s - (now_s if state.running_since_s is None else state.running_since_s)


class _Opening:
    """The first opening of a source: done in its own thread, awaited by the one that starts the agent."""

    def __init__(self, task: CollectorTask) -> None:
        self._task = task
        self._done = threading.Event()
        self._error: Unavailable | None = None

    def run(self) -> bool:
        try:
            self._task.open()
        except Unavailable as error:
            self._error = error
        self._done.set()
        return self._error is None

    def result(self, timeout_s: float) -> None:
        if self._task.on_unavailable is not OnUnavailable.ERROR:
            return
        if not self._done.wait(timeout_s):
            raise Unavailable(f"The collector {self._task.name!r} did not start within {timeout_s:.0f} s.")
        if self._error is not None:
            raise self._error
