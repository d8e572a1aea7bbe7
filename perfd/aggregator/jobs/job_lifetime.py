"""Whether a job still runs: what agents, log and scheduler say of its end, and what takes that back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from perfd.model import Event, JobOutcome

RANKS_RETURN_WITHIN_S = 60.0
"""torchelastic has new workers seconds after the old ones' end; an agent that is upgraded is back sooner."""
LATE_LINES_S = 10.0
"""Lines printed so long after an end may still be those of its last seconds: clocks of nodes differ."""
_END_ROUNDED_S = 2.0
"""Kubernetes rounds the end of a container down to seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """When and how a job ended."""

    time_unix_s: float
    outcome: JobOutcome = JobOutcome.UNKNOWN
    exit_code: int | None = None
    deleted: bool = False
    """A pod was deleted, and nothing says why: another one that failed by itself may be the reason."""

    @classmethod
    def of(cls, event: Event) -> JobEnd:
        """What an event of kind `job_ended` says."""
        code = event.values.get("exit_code")
        exit_code = None if code is None or not math.isfinite(code) else int(code)
        outcome = event.outcome
        if outcome is None:
            outcome = JobOutcome.UNKNOWN if exit_code is None else JobOutcome.of_exit_code(exit_code)
        return cls(
            time_unix_s=event.time_unix_ns / 1e9,
            outcome=outcome,
            exit_code=exit_code,
            deleted=bool(event.values.get("deleted")),
        )

    @property
    def weight(self) -> float:
        """How much it says; of two ends the greater one counts."""
        return JobOutcome.COMPLETED.weight + 0.5 if self.deleted else float(self.outcome.weight)

    def and_also(self, other: JobEnd) -> JobEnd:
        """One end of what two sources say: the later time, and the outcome that says more."""
        more, less = (self, other) if self.weight >= other.weight else (other, self)
        return replace(
            more,
            time_unix_s=max(self.time_unix_s, other.time_unix_s),
            exit_code=less.exit_code if more.exit_code is None else more.exit_code,
        )


@dataclass(slots=True)
class _Witness:
    """An agent that reports the job."""

    ranks: bool | None = None
    """Whether ranks of the job are on its node; None where it never saw one."""
    left: bool = False
    """It said goodbye."""

    @property
    def gone(self) -> bool:
        return self.left or self.ranks is False


class Lifetime:
    """When a job ended and how; None while it runs.

    It has ended when an agent reports it, or `RANKS_RETURN_WITHIN_S` after all agents that had ranks of it
    (all that reported it, where none had) said goodbye or saw the ranks go. An agent that vanished silently
    ends nothing. Times in `_s` are monotonic, ours; those in `_unix_s` are the agents'.
    """

    def __init__(self, agents: int) -> None:
        self.end: JobEnd | None = None
        self.ended_s: float | None = None
        """When `settle` first saw the end."""
        self._newest_end_unix_s: float | None = None
        self._most_agents = agents
        self._witnesses: dict[str, _Witness] = {}
        self._deserted: tuple[float, float] | None = None

    @property
    def deserted(self) -> bool:
        """Whether no agent is left that could see it run."""
        return self._deserted is not None

    def reports(self, agent_id: str) -> None:
        """An agent said something of the job; a new one, or one that is back, shows that it goes on."""
        witness = self._witnesses.get(agent_id)
        if witness is not None and not witness.left:
            return
        if self._deserted is not None:
            self._forget_witnesses()
        if len(self._witnesses) < self._most_agents:
            self._witnesses[agent_id] = _Witness()

    def ranks_seen(self, agent_id: str, started_unix_s: float | None) -> None:
        """Ranks of the job are on an agent's node; those that started after its end take the end back."""
        if self.end is not None and started_unix_s is not None and started_unix_s > self.end.time_unix_s:
            self.revive()
        self.reports(agent_id)
        if agent_id in self._witnesses:
            self._witnesses[agent_id].ranks = True
            self._deserted = None

    def ranks_gone(self, agent_id: str, time_unix_s: float, now_s: float) -> None:
        """An agent sees no rank of the job on its node any more."""
        self.reports(agent_id)
        if agent_id in self._witnesses:
            self._witnesses[agent_id].ranks = False
            self._look_around(time_unix_s, now_s)

    def leaves(self, agent_id: str, time_unix_s: float, now_s: float) -> bool:
        """An agent said goodbye; returns whether it had reported the job."""
        witness = self._witnesses.get(agent_id)
        if witness is None:
            return False
        witness.left = True
        self._look_around(time_unix_s, now_s)
        return True

    def steps_on(self, time_unix_s: float) -> bool:
        """A new step was printed; returns whether that took an end back."""
        if self._deserted is not None and time_unix_s > self._deserted[0] + LATE_LINES_S:
            self._forget_witnesses()
        if self.end is None or time_unix_s <= self.end.time_unix_s + LATE_LINES_S:
            return False
        self.revive()
        return True

    def take(self, end: JobEnd) -> None:
        """The job's end was reported, and maybe how it ended."""
        self.end = end if self.end is None else self.end.and_also(end)
        self._newest_end_unix_s = self.end.time_unix_s

    def ended_between(self, before_unix_s: float, after_unix_s: float) -> bool:
        """Whether the newest end is between two lines; one that was void later counts, too."""
        end_unix_s = self._newest_end_unix_s
        return end_unix_s is not None and before_unix_s <= end_unix_s + _END_ROUNDED_S < after_unix_s

    def starts(self, time_unix_s: float) -> None:
        """The job's start was reported: an end before that is void."""
        if self.end is not None and time_unix_s >= self.end.time_unix_s:
            self.revive()

    def revive(self) -> None:
        """The job runs, whatever was reported before."""
        self.end = self.ended_s = None
        self._forget_witnesses()

    def end_if_over(self, now_s: float) -> JobEnd | None:
        """End the job if its agents stayed away long enough; returns that end, else None."""
        found = None
        if self.end is None and self._deserted is not None:
            since_unix_s, since_s = self._deserted
            if now_s - since_s >= RANKS_RETURN_WITHIN_S:
                found = self.end = JobEnd(time_unix_s=since_unix_s)
        if self.end is not None and self.ended_s is None:
            self.ended_s = now_s
        return found

    def _look_around(self, time_unix_s: float, now_s: float) -> None:
        with_ranks = [one for one in self._witnesses.values() if one.ranks is not None]
        if all(one.gone for one in with_ranks or self._witnesses.values()):
            self._deserted = self._deserted or (time_unix_s, now_s)

    def _forget_witnesses(self) -> None:
        self._witnesses.clear()
        self._deserted = None
