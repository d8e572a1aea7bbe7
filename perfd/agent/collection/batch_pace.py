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
_LONGEST_ASKED_S = 5.0
"""The longest interval that an aggregator may ask for; a longer one can only be configured. Chosen."""
_STEPS = 20
"""Newest step times that say what is usual: few, since a job's pace may change for good."""
_FEW_STEPS = 5
"""With fewer step times nothing is usual yet, and no step is overdue."""


class BatchPace:
    """The interval between batches: of what changes, what the aggregator asks and captures.

    Thread-safe, without a clock.

    Something changes with an event, a rank's place or a job's description, when a collector begins to fail
    or to work, and when a step takes 10% longer or shorter than the median of the 20 before it or does not
    end, and when the aggregator has a new finding of the node's job.
    """

    def __init__(self, *, interval_s: float, quiet_interval_s: float | None) -> None:
        """`quiet_interval_s` is the interval while nothing changes; None: what the aggregator asks for."""
        self._interval_s = interval_s
        self._quiet_interval_s = quiet_interval_s
        self._asked_s: float | None = None
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
        with self._lock:
            if self._changed_s is None or self._is_overdue(now_s):
                self._changed_s = now_s
            quiet = now_s - self._changed_s >= QUIET_AFTER_S
            asked_s = self._asked_s
        if capturing:
            own = self._quiet_interval_s is not None
            return min(CAPTURE_INTERVAL_S, self._interval_s) if own else self._interval_s
        quiet_s = asked_s if self._quiet_interval_s is None else self._quiet_interval_s
        return max(self._interval_s, quiet_s) if quiet and quiet_s is not None else self._interval_s

    def ask(self, quiet_s: float) -> None:
        """Note how often the aggregator wants batches while nothing changes; 0: as at other times."""
        with self._lock:
            self._asked_s = min(quiet_s, _LONGEST_ASKED_S) if quiet_s > 0 else None

    def change(self, now_s: float) -> None:
        """Note a change that the node does not see itself."""
        with self._lock:
            self._changed_s = now_s

    def take(self, records: Sequence[Record], now_s: float) -> None:
        """Note what collectors read."""
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


def in_other_intervals(one_unix_s: float, other_unix_s: float, interval_s: float) -> bool:
    """Whether two moments are in different intervals of those that begin at multiples of `interval_s`.

    A quiet agent sends once in each of these: agents whose clocks agree then send at the same instants.
    """
    return one_unix_s // interval_s != other_unix_s // interval_s
