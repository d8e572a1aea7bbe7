"""Which attempt of a job runs: when its log, its processes or their launcher show that it started again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfd.aggregator.jobs.job_lifetime import JobEnd
from perfd.aggregator.jobs.record_source import RecordSource
from perfd.aggregator.jobs.step_tables import StepRows
from perfd.analysis.diagnosis import JobPast
from perfd.analysis.findings import FaultPeriod
from perfd.errors import RefusedError
from perfd.model import Event, EventKind, JobOutcome, TrainingStep

_QUIET_S = 60.0
"""Without a report of any step; before that, an earlier step is not one of a new attempt. Chosen."""
_SAME_STEP_S = 120.0
"""Logs of two ranks have the same step at times that differ by less, however far their clocks are off."""
_SAME_PROCESS_S = 2.0
"""A process's start is known to a second: the node's boot time is."""
_WHOLE_SECOND_S = 1.0
"""A time that is printed without its fraction is so much too early at most."""
_SAME_JOB_S = 3600.0
"""A start so long after the end is another job of that name, unless the scheduler says otherwise. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A start of the job."""

    unix_s: float
    """By the agents' clock."""
    seen_s: float
    """When the aggregator learned of it, by its own monotonic clock."""


class JobAttempts:
    """Counts the attempts of one job, from 1. Decides from the lines of all agents that read its logs."""

    def __init__(self, ranks: int) -> None:
        """Starts of up to `ranks` processes are remembered."""
        self.number = 1
        self.started_unix_s: float | None = None
        self._reported_unix_s: float | None = None
        """The newest start that was reported: `perfd run` and the nodes of the ranks report one each."""
        self._restarted_unix_s: float | None = None
        self._begins_unix_s: float | None = None
        """When a start began that has shown no step yet."""
        self._repeats_exactly = False
        """Whether lines after that are the new start's even if they are the old one's again."""
        self._last_step_of: dict[str, int] = {}
        self._attempt_of: dict[str, int] = {}
        self._stepped_s = -math.inf
        self._ranks = ranks
        self._rank_started: dict[int, float] = {}
        self._stepless: _Start | None = None
        self.first_step_s: float | None = None
        """How long the first step of an attempt took from its start, the longest so far."""
        self.restarts = 0
        """How often the job started again; another job of its name counts anew."""
        self.lost_s: float | None = None
        """How much time that has cost; None where no start says."""
        self.earlier_faults: Sequence[FaultPeriod] = ()
        """Those of the job that an earlier aggregator saw."""
        self._newest_unix_s: float | None = None
        """The time of its newest step."""

    def restore(self, number: int, started_unix_s: float | None, past: JobPast) -> None:
        """Go on where an earlier aggregator was."""
        self.number, self.started_unix_s = number, started_unix_s
        self.restarts, self.lost_s = past.restarts_count, past.restarts_lost_s
        self.earlier_faults = past.faults

    @property
    def began_unix_s(self) -> float | None:
        """When the job started or restarted last."""
        known = [began for began in (self.started_unix_s, self._restarted_unix_s) if began is not None]
        return max(known, default=None)

    def event(self, event: Event, steps: StepRows, end: JobEnd | None, now_s: float) -> None:
        """Note a start or restart that an agent reported of a job with these steps and this end."""
        time_unix_s = event.time_unix_ns / 1e9
        if event.kind not in {EventKind.JOB_STARTED, EventKind.RESTARTED}:
            return
        first_unix_s, newest_unix_s = steps.first_unix_s, steps.last_unix_s
        if event.kind is EventKind.JOB_STARTED and first_unix_s is not None and time_unix_s < first_unix_s:
            # The start that made these steps, seen late: as if the report had come before them.
            if self._reported_unix_s is not None:
                self._start_reported(max(time_unix_s, self._reported_unix_s))
            elif self.started_unix_s is None or time_unix_s < self.started_unix_s:
                self.started_unix_s = time_unix_s
            return
        continues = newest_unix_s is not None and self._continues(time_unix_s, newest_unix_s, end)
        if event.kind is EventKind.RESTARTED or continues:
            self._restarted_unix_s = time_unix_s
        else:
            self._start_reported(time_unix_s)
        # The log of a process that began before the newest step shows that step itself.
        if event.values.get("new_process") and newest_unix_s is not None and time_unix_s > newest_unix_s:
            self.begins_anew(time_unix_s - _WHOLE_SECOND_S, now_s, repeats_exactly=True)

    def _start_reported(self, time_unix_s: float) -> None:
        self.started_unix_s = self._reported_unix_s = time_unix_s

    def _continues(self, started_unix_s: float, newest_unix_s: float, end: JobEnd | None) -> bool:
        """Whether a start is one of the job that made these steps, and not another job of its name."""
        if self._begins_unix_s is not None or end is None:
            return self._begins_unix_s is not None or started_unix_s - newest_unix_s < _SAME_JOB_S
        return end.outcome is not JobOutcome.COMPLETED and started_unix_s - end.time_unix_s < _SAME_JOB_S

    def begins_anew(self, since_unix_s: float, now_s: float, *, repeats_exactly: bool = False) -> None:
        """Note that scheduler or launcher started the job again; its first step then begins an attempt.

        `repeats_exactly`: all lines from then on are another process's, even those that repeat earlier ones.
        """
        self._begins_unix_s = since_unix_s
        self._repeats_exactly = repeats_exactly
        # Starts that fail before their first step are one time without steps.
        self._stepless = self._stepless or _Start(unix_s=since_unix_s, seen_s=now_s)

    def stepped(self, step_unix_s: float) -> None:
        """Note the time of a step: the first one after a start shows how long that took."""
        self._newest_unix_s = step_unix_s
        if self._stepless is not None and step_unix_s < self._stepless.unix_s:
            return
        if self._stepless is not None or self.first_step_s is None:
            shown = (self.started_unix_s, *self._rank_started.values())
            first = min((one for one in shown if one is not None), default=step_unix_s)
            began_unix_s = self._stepless.unix_s if self._stepless else first
            self.first_step_s = max(self.first_step_s or 0.0, step_unix_s - began_unix_s)
        self._stepless = None

    def stepless_s(self, now_s: float) -> float | None:
        """How long ago the job was started again, if it has made no step since; else None."""
        return None if self._stepless is None else max(0.0, now_s - self._stepless.seen_s)

    def rank_started(
        self, rank: int, started_unix_s: float, newest_step_unix_s: float | None, now_s: float
    ) -> bool:
        """Note when a rank's process started; another process after the newest step is another start.

        Returns whether the rank had another process before.
        """
        before_unix_s = self._rank_started.get(rank)
        if before_unix_s is not None and started_unix_s <= before_unix_s + _SAME_PROCESS_S:
            return False
        if rank < self._ranks:
            self._rank_started[rank] = started_unix_s
        if (
            before_unix_s is not None
            and newest_step_unix_s is not None
            and started_unix_s > newest_step_unix_s
        ):
            self.begins_anew(started_unix_s, now_s)
        return before_unix_s is not None

    def start_shown_by(
        self,
        step: int,
        printed_unix_s: float,
        source: RecordSource,
        steps: StepRows,
        ended_unix_s: float | None,
    ) -> str | None:
        """The sentence that says why a new line is the first of another attempt; None when it is not.

        Raises `RefusedError` if a node that is none of the job's reports an earlier step.
        """
        begins = self._begins_unix_s is not None and printed_unix_s >= self._begins_unix_s
        newest = steps.last_step
        if begins and source.member:
            self.forget_logs()
            lost = 0 if newest is None else max(0, newest - step + 1)
            return f"The job started again, from step {step}; {lost} steps are computed again."
        if not self._went_back(step, printed_unix_s, source, steps, ended_unix_s):
            return None
        if not source.member:
            raise RefusedError("A node outside the job reported an earlier step.")
        seen = self._attempt_of.get(source.agent_id, self.number)
        self._attempt_of[source.agent_id] = min(seen, self.number) + 1
        if seen < self.number or newest is None or newest < step:
            # Another agent's log has already shown it.
            return None
        return f"Step {step} came after step {newest}: the job went back to a checkpoint."

    def begins_with(self, step: TrainingStep) -> bool:
        """Whether a timed step is the first one of a start that scheduler, launcher or a process reported."""
        if self._begins_unix_s is None or step.time_unix_ns is None:
            return False
        lasted_s = (step.step_time_s or 0.0) * step.steps_covered
        return step.time_unix_ns / 1e9 - lasted_s >= self._begins_unix_s

    def surely_begins(self, printed_unix_s: float) -> bool:
        """Whether a line is a new start's, even if it repeats an earlier one exactly."""
        return (
            self._repeats_exactly
            and self._begins_unix_s is not None
            and printed_unix_s >= self._begins_unix_s
        )

    def line(self, step: int, source: RecordSource) -> None:
        """Note how far an agent's log is, after `start_shown_by` was asked."""
        self._last_step_of[source.agent_id] = step
        self._attempt_of.setdefault(source.agent_id, self.number)
        self._stepped_s = source.now_s

    def next(self, time_unix_s: float, lost_s: float | None = None) -> None:
        """Begin another attempt, by which so much time was lost."""
        self.number += 1
        started_unix_s, newest_unix_s = self.started_unix_s, self._newest_unix_s
        if started_unix_s is not None and newest_unix_s is not None and started_unix_s > newest_unix_s:
            self.restarts, self.lost_s = 0, None
        else:
            self.restarts += 1
            self.lost_s = self.lost_s if lost_s is None else (self.lost_s or 0.0) + lost_s
        self._begins_unix_s = None
        self._restarted_unix_s = time_unix_s

    def leave(self, agent_id: str) -> None:
        """An agent left: another one that reads the log begins anywhere."""
        self._last_step_of.pop(agent_id, None)

    def forget_logs(self) -> None:
        """Forget how far each agent's log is."""
        self._last_step_of.clear()
        self._attempt_of.clear()

    def _went_back(
        self,
        step: int,
        printed_unix_s: float,
        source: RecordSource,
        steps: StepRows,
        ended_unix_s: float | None,
    ) -> bool:
        last_of_agent = self._last_step_of.get(source.agent_id)
        if last_of_agent is not None:
            return step < last_of_agent
        if step > (steps.last_step or 0):
            return False
        # A further agent may lag behind the others. It reads another start of the job when these have left,
        # when the job had ended, or when they are silent and its start or its lines are newer than theirs.
        if not self._last_step_of:
            return True
        if ended_unix_s is not None:
            return printed_unix_s > ended_unix_s
        newest_unix_s = steps.last_unix_s
        if source.now_s - self._stepped_s <= _QUIET_S or newest_unix_s is None:
            return False
        began_again = self.began_unix_s is not None and self.began_unix_s > newest_unix_s
        return began_again or _printed_anew(step, printed_unix_s, steps, newest_unix_s)


def _printed_anew(step: int, printed_unix_s: float, steps: StepRows, newest_unix_s: float) -> bool:
    """Whether a line was printed long after that of the same step, and after the newest one."""
    earlier_unix_s = steps.unix_s(step) or newest_unix_s
    return printed_unix_s > newest_unix_s and printed_unix_s - earlier_unix_s > _SAME_STEP_S
