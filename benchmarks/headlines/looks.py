"""Every look at a recording: what perfd said of it, second by second, and how steady and right that was."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.headlines.truth import Phase, Truth
from benchmarks.without_rules import WITHOUT_RULES
from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.analysis.findings import Finding, Kind
from perfd.clock import ROUND_AFTER, SEND_AFTER
from perfd.session.replay_session import ReplayOptions, ReplayProgress, replay

STEADY_STEPS = 10
"""From so many steady steps on the headline should change only when the job does."""
_STEADY_S = 10.0
"""The same after the first headline of a job that prints no steps."""
_BLAMING = frozenset({Kind.STRAGGLER, Kind.DATA_LOADING, Kind.THROTTLING, Kind.HANG})
_OF_ALL_HOSTS = frozenset({Kind.DATA_LOADING, Kind.LATE_HOSTS, Kind.HOST_CONTENTION})
"""What a headline may be while the loaders or hosts of all ranks are slow."""
_OF_BUSY_HOSTS = _OF_ALL_HOSTS | {Kind.HOST_BOUND}
"""While hosts of all ranks compute: from the first step on, nothing shows that they ever were faster."""
_SLOW_DATA = frozenset({"loader", "storage", "decoding"})
_SLOW_HOSTS = frozenset({"host", "busy", "crowded", "stall"})
_ROLES = frozenset({"tensor rank", "broadcast root"})
"""Culprits that are a role of ranks rather than a rank."""
LIVE_TICK_S = 1.0
Said = tuple[str, tuple[str, ...]]
"""A headline without its figures: its kind and its culprits."""
_LEAST_LOST = 0.1
_IN_TIME_S = 5.0
"""So long an alert about a fault may take (`benchmarks.alert_onset`): one that begins later than this before
the job's end need not be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was said at one moment."""

    at_s: float
    """Since the recording began."""
    unix_s: float
    step: int | None
    """The last one in the log by then."""
    steady_steps: int
    kind: str
    culprits: tuple[str, ...]
    gain_ratio: float | None
    blamed: frozenset[int]
    """All ranks that a finding of a fault names, not only the headline's."""
    roles: frozenset[int]
    """The ranks of a role that the headline names, such as the one that reads the data for all, or the only
    ones whose hosts it says to be late."""
    blamed_gain_ratio: float | None
    """Of the first such finding."""

    @property
    def said(self) -> Said:
        """The headline, without its figures."""
        return self.kind, self.culprits


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Looks in a row that said the same."""

    first: Look
    last: Look
    gain_ratios: tuple[float | None, float | None]
    """The least and the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPhase:
    """What was said of one fault of a run with several."""

    phase: Phase
    named_after_s: float | None
    """From its begin to the first look that names its ranks and no other one, or the hosts of all ranks."""
    gain_error: float | None
    """By how much of a step the last such look missed what was measured."""
    gain_ratio: float | None
    over_after_s: float | None
    """From its end to the last look that still names it, before the next one; None unless it was named."""
    healthy_s: float
    """How long the job went on without a fault after it."""
    wrongly: frozenset[int]
    """Ranks that looks in it blame although neither this fault nor the one before it is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One recording, all looks at it, and its truth where that is known."""

    name: str
    looks: Sequence[Look]
    truth: Truth | None
    took_s: float
    end: Look | None = None
    """The summary of the job once it was over."""

    @property
    def runs(self) -> list[Run]:
        """What was said, in order."""
        runs: list[list[Look]] = []
        for look in self.looks:
            if runs and runs[-1][-1].said == look.said:
                runs[-1].append(look)
            else:
                runs.append([look])
        return [_run(looks) for looks in runs]

    @property
    def flips(self) -> int:
        """How often the headline changed once the job was steady."""
        return sum(before.said != after.said for before, after in pairwise(self._steady))

    @property
    def false_blame(self) -> frozenset[int]:
        """Ranks that any look blames and that are not to blame, or not yet."""
        if self.truth is None:
            return frozenset()
        if self.truth.phases:
            return frozenset().union(*(one.wrongly for one in self.of_phases))
        wrongly: set[int] = set()
        for look in self.looks:
            begun = (look.step or 0) >= self.truth.since_step
            wrongly |= look.blamed - (self.truth.ranks | self.truth.hidden_ranks if begun else frozenset())
        return frozenset(wrongly)

    @property
    def right(self) -> bool | None:
        """Whether the last headline is one that it may be; None where nobody knows."""
        if self.truth is None:
            return None
        if self.truth.phases:
            ends_unix_s = self.truth.phases[-1].end_unix_s
            return all(
                one.named_after_s is not None
                for one in self.of_phases
                if must_be_named(one.phase) and ends_unix_s - one.phase.begin_unix_s >= _IN_TIME_S
            )
        last = self.looks[-1]
        return last.kind in self.truth.kinds and (not self.truth.ranks or last.blamed == self.truth.ranks)

    @property
    def right_at_end(self) -> bool | None:
        """Whether the summary of the whole job names what cost it most of its time, and blames no other rank.

        Of a fault that cost a tenth of it; what limits the job all along may cost more, as it says. A job
        without a fault has no slow input. None where nobody knows, as of a job that was killed: it may hang.
        Nor is a rank judged that was blamed only after the last phase of such a job: a fault may have begun.
        """
        if self.truth is None or self.end is None:
            return None
        if not self.truth.phases:
            return self.end.blamed <= self.truth.ranks | self.truth.hidden_ranks
        if self.end.kind == Kind.HANG and math.isfinite(self.truth.until_unix_s):
            return None
        until_unix_s = self.truth.until_unix_s
        since = frozenset().union(*(look.blamed for look in self.looks if look.unix_s > until_unix_s))
        faulty = since.union(*(phase.ranks for phase in self.truth.phases))
        most = max(self.truth.phases, key=lambda phase: phase.lost_s)
        all_s = self.truth.phases[-1].end_unix_s - self.truth.phases[0].begin_unix_s
        named = _names(self._headline_at_end, most) or (self.end.gain_ratio or 0.0) >= most.lost_s / all_s
        if most.lost_s <= 0 and self.end.kind in _OF_ALL_HOSTS:
            return False
        return self.end.blamed <= faulty and (named or most.lost_s < _LEAST_LOST * all_s)

    @property
    def _headline_at_end(self) -> Look:
        """Without the other faults of the job, which its summary has behind the headline."""
        assert self.end is not None
        names = (one.removeprefix("rank ") for one in self.end.culprits if one.startswith("rank "))
        return replace(self.end, blamed=frozenset(map(int, names)))

    @property
    def of_phases(self) -> list[OfPhase]:
        """Fault by fault, for a run with several."""
        phases = self.truth.phases if self.truth else ()
        return [
            _of_phase(self.looks, phase, phases[max(0, at - 2) : at], phases[at + 1 : at + 2])
            for at, phase in enumerate(phases)
        ]

    @property
    def gain_error(self) -> float | None:
        """By how much of a step the last gain of a fault's finding misses what was measured."""
        measured, last = (self.truth.cost_ratio if self.truth else None), self.looks[-1]
        if measured is None or not self.truth or last.blamed != self.truth.ranks or not last.blamed:
            return None
        return None if last.gain_ratio is None else abs(last.gain_ratio - measured)

    @property
    def _steady(self) -> list[Look]:
        until_unix_s = self.truth.until_unix_s if self.truth else math.inf
        looks = [look for look in self.looks if look.unix_s <= until_unix_s]
        if any(look.step for look in looks):
            steady = [look for look in looks if look.steady_steps >= STEADY_STEPS]
            # The first verdict is no change of one.
            return list(dropwhile(lambda look: look.kind == Kind.UNKNOWN, steady))
        said = (look.at_s for look in looks if look.kind != Kind.UNKNOWN)
        since_s = next(said, math.inf) + _STEADY_S
        return [look for look in looks if look.at_s >= since_s]

    @property
    def too_many_flips(self) -> bool:
        """Whether the headline changed more often than the job did."""
        return self.flips > (self.truth.changes if self.truth else 0)


def watch(recording: Path, name: str, truth: Truth | None, *, tick_s: float = LIVE_TICK_S) -> Watched:
    """Play a recording as fast as possible and look at it each second, as a live session does."""
    looks: list[Look] = []

    def look(progress: ReplayProgress) -> None:
        for job in progress.aggregator.jobs():
            summary = progress.aggregator.live(job)
            if summary is not None:
                # The API answers with it: what has no JSON ends the watch.
                to_json([summary])
                at_s = progress.played_s + (ROUND_AFTER - SEND_AFTER) * tick_s
                looks.append(_look(at_s, progress.start_unix_s, summary))

    begun_s = time.perf_counter()
    options = ReplayOptions(recording=recording, tick_s=tick_s, allow_missing=True, config=WITHOUT_RULES)
    result = replay(options, on_progress=look)
    start_unix_s = looks[-1].unix_s - looks[-1].at_s if looks else 0.0
    ends = [_look(result.played_s, start_unix_s, summary) for summary in result.summaries]
    took_s = time.perf_counter() - begun_s
    return Watched(name=name, looks=looks, truth=truth, took_s=took_s, end=ends[-1] if ends else None)


def _look(at_s: float, start_unix_s: float, summary: JobSummary) -> Look:
    headline = summary.bottleneck
    blaming = [finding for finding in summary.findings if finding.kind in _BLAMING]
    return Look(
        at_s=at_s,
        unix_s=start_unix_s + at_s,
        step=summary.steps.last,
        steady_steps=summary.steps.steady_steps_count,
        kind=headline.kind.value,
        culprits=tuple(map(str, headline.culprits)),
        gain_ratio=headline.gain_ratio,
        blamed=frozenset(
            int(culprit.id) for finding in blaming for culprit in finding.culprits if culprit.kind == "rank"
        ),
        roles=frozenset(headline.ranks if _is_of_role(headline) else ()),
        blamed_gain_ratio=next((finding.gain_ratio for finding in blaming), None),
    )


def _is_of_role(headline: Finding) -> bool:
    late_hosts = headline.kind is Kind.LATE_HOSTS and not headline.culprits
    return late_hosts or any(culprit.kind in _ROLES for culprit in headline.culprits)


class Timed(Protocol):
    """A headline at one moment."""

    @property
    def unix_s(self) -> float: ...

    @property
    def said(self) -> Said: ...


OneLook = TypeVar("OneLook", bound=Timed)


def unlike(looks: Sequence[OneLook], others: Sequence[Timed], within_s: float = 2.0) -> list[OneLook]:
    """Those whose headline none of the others has at about the same time of the recording."""
    return [
        look
        for look in looks
        if all(look.said != other.said for other in others if abs(other.unix_s - look.unix_s) <= within_s)
    ]


def must_be_named(phase: Phase) -> bool:
    """Whether a rank is to blame for a tenth of a step and more, or the hosts of all ranks."""
    return phase.fault != "healthy" and (phase.lost_ratio or 0.0) >= _LEAST_LOST


def _of_phase(
    looks: Sequence[Look], phase: Phase, before: Sequence[Phase], after: Sequence[Phase]
) -> OfPhase:
    """A fault is still in the steps that are judged for some time after its end."""
    inside = [look for look in looks if phase.begin_unix_s <= look.unix_s < phase.end_unix_s]
    until_unix_s = after[0].end_unix_s if after else phase.end_unix_s
    right = [
        look for look in looks if phase.begin_unix_s <= look.unix_s < until_unix_s and _names(look, phase)
    ]
    left = [look.unix_s - phase.end_unix_s for look in right if look.unix_s >= phase.end_unix_s]
    allowed = phase.ranks.union(*(one.ranks for one in before))
    said = [look.blamed_gain_ratio if look.blamed else look.gain_ratio for look in right]
    gains = [gain for gain in said if gain is not None]
    gain = gains[-1] if gains else None
    missed = None if gain is None or phase.lost_ratio is None else abs(gain - phase.lost_ratio)
    return OfPhase(
        phase=phase,
        named_after_s=right[0].unix_s - phase.begin_unix_s if right else None,
        gain_error=missed,
        gain_ratio=gain,
        over_after_s=max(left, default=0.0) if right else None,
        healthy_s=until_unix_s - phase.end_unix_s,
        wrongly=frozenset().union(*(look.blamed for look in inside)) - allowed,
    )


def _names(look: Look, phase: Phase) -> bool:
    """Of slow hosts or input their role is enough, where no other rank has that one."""
    if phase.ranks and phase.fault in _SLOW_HOSTS | _SLOW_DATA and look.roles and not look.blamed:
        return look.roles == phase.ranks
    if phase.ranks:
        return look.blamed == phase.ranks
    if phase.fault == "stall" and look.kind == Kind.PERIODIC_STALL:
        return not look.blamed
    kinds = _OF_BUSY_HOSTS if phase.fault == "busy" else _OF_ALL_HOSTS
    return phase.fault in _SLOW_DATA | _SLOW_HOSTS and look.kind in kinds and not look.blamed


def _run(looks: Sequence[Look]) -> Run:
    gains = [look.gain_ratio for look in looks if look.gain_ratio is not None]
    return Run(
        first=looks[0], last=looks[-1], gain_ratios=(min(gains), max(gains)) if gains else (None, None)
    )
