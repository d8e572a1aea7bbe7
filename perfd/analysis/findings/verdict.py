"""What rounds have found for a job so far, and when a round analyzed it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfd.analysis.findings.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a round analyzed a job."""

    unix_s: float
    step: int | None
    """The newest; None if it is known only seconds later, or never."""
    steady_steps: int
    step_s: float | None = None
    """How long one takes."""
    newest_step: int | None = None
    """The newest one that is known, however late; None without steps."""
    newest_step_s: float | None = None
    """How long the newest few take."""
    began_unix_s: float | None = None
    """When the job started or restarted last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What rounds have found for a job so far, for the next one."""

    settled: Finding | None = None
    """The headline that blames no rank, as last found; None before the first."""
    settled_since: Moment | None = None
    """Since when rounds have found `settled`."""
    earlier: Finding | None = None
    """The headline before `settled`."""
    missed_since: Moment | None = None
    """Since when rounds find another one, before the first also only computation or a slow rank; None while
    they find `settled`."""
    alike: Moment | None = None
    """When a round last found both `settled` and another one that costs about as much."""
    blamed: Finding | None = None
    """The headline that blames a rank, as last found; None once that is over."""
    blamed_since: Moment | None = None
    confirmed: bool = False
    """Whether rounds a second and a step apart have found `blamed`."""
    was_blamed: Finding | None = None
    """The last one that was `blamed`."""
    was_blamed_last: Moment | None = None
    """When it was last: steps of that time are judged for some time after."""
    suspected: Finding | None = None
    """What a tentative finding of the newest round blames, which is not shown yet."""
    suspected_since: Moment | None = None
    cleared_since: Moment | None = None
    """Since when rounds have another headline than `blamed`; None while they have it."""
    newest: Moment = Moment(unix_s=-math.inf, step=None, steady_steps=0)
    """The first round that had the newest step."""
    steady_steps: int = 0
    """The most that a round since the job began had: slow steps of its start turn out not to be steady."""

    @property
    def pending(self) -> bool:
        """Whether time alone can change the headline."""
        return self.missed_since is not None or self.cleared_since is not None


def apart(since: Moment, now: Moment, least_steps: float, least_s: float) -> bool:
    """By the duration of that many steps, which also passes after the last line of a log."""
    return now.unix_s - since.unix_s >= max(least_s, least_steps * (now.step_s or 0.0))
