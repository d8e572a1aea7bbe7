"""Every look at a recording: what perfd said of it, second by second, and how steady and right that was."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.headlines.truth import Truth
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Kind
from perfd.session.replay_session import ReplayOptions, ReplayProgress, replay

STEADY_STEPS = 10
"""From so many steady steps on the headline should change only when the job does."""
_STEADY_S = 10.0
"""The same after the first headline of a job that prints no steps."""
_BLAMING = frozenset({Kind.STRAGGLER, Kind.DATA_LOADING, Kind.THROTTLING, Kind.HANG})
_LIVE_TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was said at one moment."""

    at_s: float
    step: int | None
    """The last one in the log by then."""
    steady_steps: int
    kind: str
    culprits: tuple[str, ...]
    gain_ratio: float | None
    blamed: frozenset[int]
    """All ranks that a finding of a fault names, not only the headline's."""

    @property
    def said(self) -> tuple[str, tuple[str, ...]]:
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
class Watched:
    """One recording, all looks at it, and its truth where that is known."""

    name: str
    looks: Sequence[Look]
    truth: Truth | None
    took_s: float

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
        last = self.looks[-1]
        return last.kind in self.truth.kinds and (not self.truth.ranks or last.blamed == self.truth.ranks)

    @property
    def gain_error(self) -> float | None:
        """By how much of a step the last gain of a fault's finding misses what was measured."""
        measured, last = (self.truth.cost_ratio if self.truth else None), self.looks[-1]
        if measured is None or not self.truth or last.blamed != self.truth.ranks or not last.blamed:
            return None
        return None if last.gain_ratio is None else abs(last.gain_ratio - measured)

    @property
    def _steady(self) -> list[Look]:
        if any(look.step for look in self.looks):
            return [look for look in self.looks if look.steady_steps >= STEADY_STEPS]
        said = (look.at_s for look in self.looks if look.kind != Kind.UNKNOWN)
        since_s = next(said, math.inf) + _STEADY_S
        return [look for look in self.looks if look.at_s >= since_s]

    @property
    def too_many_flips(self) -> bool:
        """Whether the headline changed more often than the job did."""
        return self.flips > (self.truth.changes if self.truth else 0)


def watch(recording: Path, name: str, truth: Truth | None) -> Watched:
    """Play a recording as fast as possible and look at it each second, as a live session does."""
    looks: list[Look] = []

    def look(progress: ReplayProgress) -> None:
        for job in progress.aggregator.jobs():
            summary = progress.aggregator.live(job)
            if summary is not None:
                looks.append(_look(progress.played_s, summary))

    begun_s = time.perf_counter()
    options = ReplayOptions(recording=recording, tick_s=_LIVE_TICK_S, allow_missing=True)
    replay(options, on_progress=look)
    return Watched(name=name, looks=looks, truth=truth, took_s=time.perf_counter() - begun_s)


def _look(at_s: float, summary: JobSummary) -> Look:
    headline = summary.bottleneck
    return Look(
        at_s=at_s,
        step=summary.steps.last,
        steady_steps=summary.steps.steady_count,
        kind=headline.kind.value,
        culprits=tuple(map(str, headline.culprits)),
        gain_ratio=headline.gain_ratio,
        blamed=frozenset(
            int(culprit.id)
            for finding in summary.findings
            if finding.kind in _BLAMING
            for culprit in finding.culprits
            if culprit.kind == "rank"
        ),
    )


def _run(looks: Sequence[Look]) -> Run:
    gains = [look.gain_ratio for look in looks if look.gain_ratio is not None]
    return Run(
        first=looks[0], last=looks[-1], gain_ratios=(min(gains), max(gains)) if gains else (None, None)
    )
