"""Whether lines of steps that were seen before are of other ranks, or of a run that began again or beside."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T")

_FEWEST_LINES = 3
_FEWEST_MOMENTS = 3
"""Copies of a rank whose output is buffered come all at once; lines of a run at as many moments."""
_QUIET_S = 5.0
_QUIET_INTERVALS = 5
"""Without a new step for so long, and for so many times what steps take, the first run is over: ranks of one
job wait for each other in each step. Chosen."""
_MOST_LINES = 4096
"""That wait for the decision; more are dropped."""
_INTERVALS = 8
_TURNS, _TURNS_UNTIL_OVER = 20, 5
"""While both runs print, and where the first one is over: a run that begins again was not behind before."""
_FEWEST_LINES_BEHIND = 10
"""Ranks of a job print the same step within a few lines; two runs diverge. Both chosen, not measured."""
_FEWEST_OTHERS = 20
"""Steps of another source, and as many of the one that counts, before their pace is compared. Chosen."""
_LINES_OFF = 4.0
"""Lines by which two sources of one run are at most apart: each prints some steps only, and late. Chosen."""


@dataclass(slots=True)
class RepeatedLines(Generic[T]):
    """Lines of one job whose steps were seen before, since its newest step."""

    _waiting: list[tuple[int, T]] = field(default_factory=list)
    _moments: set[float] = field(default_factory=set)
    _newest_s: deque[float] = field(default_factory=lambda: deque(maxlen=_INTERVALS))
    _turned: bool = False
    """Whether a new step came after the last repeated one."""
    _behind: deque[int] = field(default_factory=lambda: deque(maxlen=_TURNS))
    """By how many lines repeated steps were behind, each after a new step."""
    diverge: bool = False
    """Whether repeated steps fall behind more and more: two runs print at the same time."""

    def new_step(self, now_s: float | None) -> None:
        """Note a step that was not seen before, and when it was printed by a steady clock, if known."""
        self._waiting.clear()
        self._moments.clear()
        self._turned = True
        if now_s is not None and (not self._newest_s or now_s > self._newest_s[-1]):
            self._newest_s.append(now_s)

    def begin_again(self, step: int, line: T, now_s: float | None, *, behind: int) -> list[T]:
        """The lines of a run that has begun again, of which this is the newest; empty while that is unknown.

        `behind` is how many lines ago the step was seen.
        """
        if self._turned:
            self._turned = False
            self._behind.append(behind)
            self.diverge = self.diverge or self._falls_behind(_TURNS)
        if now_s is None or not self._newest_s:
            return []
        if self._waiting and step <= self._waiting[-1][0]:
            self._waiting.clear()
            self._moments.clear()
        if len(self._waiting) < _MOST_LINES:
            self._waiting.append((step, line))
        self._moments.add(now_s)
        quiet_s = now_s - self._newest_s[-1]
        interval_s = (self._newest_s[-1] - self._newest_s[0]) / max(1, len(self._newest_s) - 1)
        if (
            len(self._waiting) < _FEWEST_LINES
            or len(self._moments) < _FEWEST_MOMENTS
            or quiet_s < max(_QUIET_S, _QUIET_INTERVALS * interval_s)
        ):
            return []
        if self._falls_behind(_TURNS_UNTIL_OVER):
            self.diverge = True
            return []
        lines = [line for _, line in self._waiting]
        self.restart()
        return lines

    def _falls_behind(self, turns: int) -> bool:
        behind = list(self._behind)
        return (
            len(behind) >= turns
            and behind[-1] >= max(_FEWEST_LINES_BEHIND, 2 * behind[0])
            and all(before <= after for before, after in pairwise(behind))
        )

    def restart(self) -> None:
        """Note that another run begins."""
        self._waiting.clear()
        self._moments.clear()
        self._newest_s.clear()
        self._behind.clear()


@dataclass(slots=True)
class OtherSource:
    """Steps by a source that does not count, beside those of the one that does.

    Two sources of one run count the same steps, or one of them batches: a whole number per step. At any other
    pace, they are of two runs.
    """

    _first: tuple[int, int] | None = None
    _newest: tuple[int, int] = (0, 0)
    """Step that counts, and the other one."""
    _most_apart: tuple[int, int] = (1, 1)
    _changes: tuple[int, int] = (0, 0)

    def diverges(self, step: int, counted: int) -> bool:
        """Note a step of the other source, and the newest one that counts; whether it is of another run."""
        more = (counted - self._newest[0], step - self._newest[1])
        if self._first is None or min(more) < 0:
            # A bar of the next epoch, or a run that began again.
            self._first = self._newest = (counted, step)
            self._most_apart, self._changes = (1, 1), (0, 0)
            return False
        self._newest = (counted, step)
        self._most_apart = (max(more[0], self._most_apart[0]), max(more[1], self._most_apart[1]))
        self._changes = (self._changes[0] + (more[0] > 0), self._changes[1] + (more[1] > 0))
        if min(self._changes) < _FEWEST_OTHERS:
            return False
        counted_span, span = counted - self._first[0], step - self._first[1]
        each = round(span / counted_span) if span >= counted_span else 1 / round(counted_span / span)
        apart = each * self._most_apart[0] + self._most_apart[1]
        return abs(span - each * counted_span) > _LINES_OFF * apart
