"""Decides when a node's records are due: seldom while nothing changes, soon when something does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from statistics import median

from perfd.model import CollectorHealth, Event, JobDescription, RankPlacement, Record, TrainingStep

QUIET_AFTER_S = 60.0
"""How long nothing must have changed."""
CHANGED_STEP_RATIO = 0.1
"""How much longer or shorter than the median of those before a step is, if it is a change."""
OVERDUE_STEPS = 2.0
"""After how many times its usual duration a step that has not ended is a change."""
CAPTURE_INTERVAL_S = 0.1
"""So that whoever asked for a capture sees its states as they change."""
_STEPS = 20
"""Newest step times that say what is usual: few, since a job's pace may change for good."""
_FEW_STEPS = 5
"""With fewer step times nothing is usual yet, and no step is overdue."""


class BatchPace:
    """The interval between batches, from the records so far and from captures. Thread-safe, without a clock.

    Something changes with an event, a rank's place or a job's description, when a collector begins to fail
    or to work, and when a step takes 10% longer or shorter than the median of the 20 before it or does not
    end, and when the aggregator has a new finding of the node's job.
    """

    def __init__(self, *, interval_s: float, quiet_interval_s: float | None) -> None:
        """`quiet_interval_s` is the interval while nothing changes; None: `interval_s`, always."""
        self._interval_s = interval_s
        self._quiet_interval_s = quiet_interval_s
        self._changed_s: float | None = None
        self._steps: dict[str, deque[float]] = {}
        """Durations of each job's newest steps."""
        self._step_s: dict[str, float] = {}
        """When the newest step of each job arrived."""
        self._seen: dict[tuple[object, ...], object] = {}
        """What was last reported of each thing that may change."""
        self._lock = threading.Lock()

    def interval_s(self, now_s: float, *, capturing: bool) -> float:
        """Seconds from one batch to the next; `now_s` is of a monotonic clock."""
        if self._quiet_interval_s is None:
            return self._interval_s
        if capturing:
            return min(CAPTURE_INTERVAL_S, self._interval_s)
        with self._lock:
            if self._changed_s is None or self._is_overdue(now_s):
                self._changed_s = now_s
            quiet = now_s - self._changed_s >= QUIET_AFTER_S
        return max(self._interval_s, self._quiet_interval_s) if quiet else self._interval_s

    def change(self, now_s: float) -> None:
        """Note a change that the node does not see itself."""
        with self._lock:
            self._changed_s = now_s

    def take(self, records: Sequence[Record], now_s: float) -> None:
        """Note what collectors read."""
        if self._quiet_interval_s is None:
            return
        with self._lock:
            for record in records:
                if self._is_change(record, now_s):
                    self._changed_s = now_s

    def _is_change(self, record: Record, now_s: float) -> bool:
        match record:
            case Event():
                return True
            case CollectorHealth():
                return self._differs((CollectorHealth, record.collector), record.success)
            case RankPlacement():
                return self._differs((RankPlacement, record.job, record.rank), record)
            case JobDescription():
                return self._differs((JobDescription, record.job), record)
            case TrainingStep():
                self._step_s[record.job] = now_s
                return record.step_time_s is not None and self._is_other_step(record.job, record.step_time_s)
        return False

    def _differs(self, of: tuple[object, ...], value: object) -> bool:
        before = self._seen.get(of)
        self._seen[of] = value
        return before != value

    def _is_other_step(self, job: str, step_s: float) -> bool:
        steps = self._steps.setdefault(job, deque(maxlen=_STEPS))
        usual_s = median(steps) if len(steps) >= _FEW_STEPS else step_s
        steps.append(step_s)
        return abs(step_s - usual_s) > CHANGED_STEP_RATIO * usual_s

    def _is_overdue(self, now_s: float) -> bool:
        return any(
            len(self._steps.get(job, ())) >= _FEW_STEPS
            and OVERDUE_STEPS * median(self._steps[job]) < now_s - arrived_s < QUIET_AFTER_S
            for job, arrived_s in self._step_s.items()
        )
