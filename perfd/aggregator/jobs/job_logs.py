"""How far the logs of one job were read, and how long they have been silent."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from perfd.aggregator.jobs.record_source import RecordSource
from perfd.model import LogProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogState:
    """How far one log was read, and how old its newest line was at that time."""

    progress: LogProgress
    silent_s: float | None
    received_s: float


class JobLogs:
    """The logs of one job, each known by the agent that reads it and its name there."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._logs: dict[tuple[str, str], _LogState] = {}
        self._worked_s = -math.inf

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def lines(self) -> int | None:
        """Lines read of all logs; None without a log."""
        return sum(log.progress.lines for log in self._logs.values()) if self._logs else None

    @property
    def unrecognized_lines(self) -> int | None:
        """Of these, the ones that no parser recognizes; None without a log."""
        return sum(log.progress.unrecognized_lines for log in self._logs.values()) if self._logs else None

    @property
    def times_are_exact(self) -> bool:
        """Whether all lines have the time at which they were written."""
        return bool(self._logs) and all(log.progress.times_are_exact for log in self._logs.values())

    def put(self, progress: LogProgress, source: RecordSource) -> bool:
        """Note how far a log was read; False when there are too many logs."""
        key = (source.agent_id, progress.stream)
        if key not in self._logs and len(self._logs) >= self._limit:
            return False
        last = progress.last_line_unix_ns
        # Both times are the agent's, so its clock's offset is not in the difference.
        silent_s = None if last is None else max(0.0, source.sent_unix_s - last / 1e9)
        self._logs[key] = _LogState(progress=progress, silent_s=silent_s, received_s=source.now_s)
        return True

    def works(self, now_s: float) -> None:
        """Note that something besides a log shows the job at work: a step, operations, its GPUs."""
        self._worked_s = max(self._worked_s, now_s)

    def idle_s(self, now_s: float) -> float | None:
        """How long neither a log nor anything else has shown the job at work; None if no agent sees a log."""
        silent_s = self.silent_s(now_s)
        return None if silent_s is None else min(silent_s, max(0.0, now_s - self._worked_s))

    def leave(self, agent_id: str) -> None:
        """Note that an agent left: its view of a log shows no silence any more."""
        for key, log in self._logs.items():
            if key[0] == agent_id:
                self._logs[key] = dataclasses.replace(log, silent_s=None)

    def silent_s(self, now_s: float) -> float | None:
        """How long no log has had a new line; None if no agent can see a log."""
        ages = [
            log.silent_s + max(0.0, now_s - log.received_s)
            for log in self._logs.values()
            if log.silent_s is not None
        ]
        return min(ages, default=None)
