"""The order of a job's progress lines: repeats, restarts, what an average covers, whose timers are whose."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from perfd.model import EventKind, PhaseTime, StepPhases, TrainingStep
from perfd_collectors.training_log.parser_output import ParserOutput

_REMEMBERED_STEPS = 4096
_SAME_LINE_NS = 120 * 10**9


class ProgressSource(IntEnum):
    """Who prints a progress line. Trainers are built on each other; the higher one is believed."""

    DEEPSPEED = 1
    """The engine under many trainers: its lines count until the trainer's own appear."""
    HUGGING_FACE = 2
    TRAINER = 3


@dataclass(frozen=True, slots=True)
class _Coverage:
    """What the averages of a progress line hold."""

    steps: int
    warmup: bool = False
    scale: float | None = 1.0
    """What the timers must be multiplied with to be per step; None when that is unknown."""


@dataclass(slots=True)
class _Run:
    """One run of the trainer: from a start or a resume to the next."""

    fresh: bool = False
    """A start was seen and no progress line yet."""
    begin: int | None = None
    """The step that it went on from; 0 for a fresh start, None when that was not seen."""
    reset_at: int | None = None
    """The last step after which the trainer set its averages to zero."""
    holds_first: bool = False
    """The averages still hold the run's first step."""

    def cover(self, step: int, *, keeps_first: bool, interval: int | None) -> _Coverage:
        """Take in the next line of the run."""
        if self.fresh or (self.reset_at is None and step <= 1):
            return self._first_line(step, keeps_first=keeps_first, interval=interval)
        since = step - self.reset_at if self.reset_at is not None else 1
        first = step - since + 1
        self.reset_at = step
        if not self.holds_first:
            return _Coverage(min(since, interval) if interval else since)
        self.holds_first = False
        # It is the next one on the interval's grid; otherwise lines were lost.
        if interval is None or step != (first // interval + 1) * interval:
            return _Coverage(since, warmup=True, scale=None)
        return _Coverage(since, warmup=True, scale=interval / since)

    def _first_line(self, step: int, *, keeps_first: bool, interval: int | None) -> _Coverage:
        self.fresh, self.holds_first = False, keeps_first
        self.reset_at = step - 1 if keeps_first else step
        if keeps_first:
            return _Coverage(1, warmup=True, scale=interval)
        since = step - self.begin if self.begin is not None and self.begin < step else 1
        if interval is None:
            # A fresh start has its first line after one interval, so its timers are right as they are.
            return _Coverage(since, warmup=True, scale=None if self.begin else 1.0)
        covered = min(since, interval)
        return _Coverage(covered, warmup=True, scale=interval / covered)


@dataclass(slots=True)
class _Current:
    """The newest progress line, waiting for its timers."""

    step: int
    scale: float | None
    """As in `_Coverage`; also None for a line that was cut, whose step is not known."""
    has_phases: bool = False


class StepLog:
    """Takes in progress lines and timer blocks of one job and puts finished records out."""

    def __init__(self, out: ParserOutput) -> None:
        self._out = out
        self._run = _Run()
        self._family: ProgressSource | None = None
        self._seen: OrderedDict[int, int | None] = OrderedDict()
        self._steps = 0
        self._matcher = _PhaseMatcher(out)

    @property
    def last_step(self) -> int | None:
        """The newest step that was reported."""
        return next(reversed(self._seen), None)

    def attach(self) -> None:
        """Take in that reading began in the middle of a log: a block of timers before a line is a stray."""
        self._matcher.cut_line()

    def started(self, printed_ns: int | None = None) -> None:
        """Take in that the trainer starts or resumes: the next progress line is the first of a run."""
        if self._run.fresh:
            return
        kind, message = EventKind.JOB_STARTED, "The trainer started."
        if self._steps:
            kind, message = EventKind.RESTARTED, "The trainer started again."
        self._out.event(kind, message, printed_ns=printed_ns)
        self._run = _Run(fresh=True, begin=0)
        self._seen.clear()
        self._matcher.restart()

    def resumed(self, step: int) -> None:
        """Take in that a checkpoint of `step` was loaded."""
        if self._run.fresh:
            self._run.begin = step

    def add(
        self,
        step: TrainingStep,
        printed_ns: int | None,
        *,
        family: ProgressSource = ProgressSource.TRAINER,
        keeps_first: bool = False,
        interval: int | None = None,
    ) -> None:
        """Take in a progress line.

        `keeps_first`: the first line of a run does not end the averages. `interval` is the
        trainer's log interval, by which it divides timers whatever number of steps they hold.
        """
        if self._family is not None and family < self._family:
            return
        if family != self._family:
            self._family = family
            self._run.reset_at = None
            self._seen.clear()
        if self._is_repeat(step.step, printed_ns):
            return
        last = self.last_step
        if last is not None and step.step <= last and not self._run.fresh:
            # Whoever keeps the steps sees the same; only a start of the trainer is news.
            self._run = _Run(fresh=True)
            self._seen.clear()
        coverage = self._run.cover(step.step, keeps_first=keeps_first, interval=interval)
        self._remember(step.step, printed_ns)
        self._out.step(replace(step, steps_covered=coverage.steps, warmup=coverage.warmup), printed_ns)
        self._matcher.line(_Current(step.step, coverage.scale))

    def phases(self, phases: Mapping[str, PhaseTime]) -> None:
        """Take in a block of timers; it goes to the progress line that it was printed with."""
        if phases:
            self._matcher.block(phases)

    def cut_line(self) -> None:
        """Take in a progress line whose step cannot be read; the timers after it are its own."""
        self._matcher.cut_line()

    def _is_repeat(self, step: int, printed_ns: int | None) -> bool:
        """Whether another rank printed this line already; a step that is done again comes later."""
        if step not in self._seen:
            return False
        before = self._seen[step]
        return printed_ns is None or before is None or abs(printed_ns - before) < _SAME_LINE_NS

    def _remember(self, step: int, printed_ns: int | None) -> None:
        self._steps += 1
        self._seen[step] = printed_ns
        if len(self._seen) > _REMEMBERED_STEPS:
            self._seen.popitem(last=False)


class _PhaseMatcher:
    """Gives each block of timers to a progress line.

    A trainer prints the line and then the block, but a launcher that reads its
    two outputs apart may show the block first. The habit so far decides where
    both would do.
    """

    def __init__(self, out: ParserOutput) -> None:
        self._out = out
        self._current: _Current | None = None
        self._early: Mapping[str, PhaseTime] | None = None
        self._doubtful: Mapping[str, PhaseTime] | None = None
        self._after = 0
        self._before = 0

    def restart(self) -> None:
        self._current = self._early = self._doubtful = None
        self._after = self._before = 0

    def cut_line(self) -> None:
        self._settle()
        self._current, self._early = _Current(-1, None), None

    def line(self, current: _Current) -> None:
        self._settle()
        self._current = current
        early, self._early = self._early, None
        if early is None:
            return
        if self._after > self._before:
            # Blocks come after their lines here. This one is the line's only if no other follows.
            self._doubtful = early
        else:
            self._before += 1
            self._give(early)

    def block(self, phases: Mapping[str, PhaseTime]) -> None:
        if self._current is not None and not self._current.has_phases:
            self._doubtful = None
            self._after += 1
            self._give(phases)
        else:
            self._early = phases

    def _settle(self) -> None:
        doubtful, self._doubtful = self._doubtful, None
        if doubtful is not None:
            self._before += 1
            self._give(doubtful)

    def _give(self, phases: Mapping[str, PhaseTime]) -> None:
        current = self._current
        if current is None:
            return
        current.has_phases = True
        if current.scale is None:
            return
        scaled = {name: _scale(phase, current.scale) for name, phase in phases.items()}
        self._out.add(StepPhases(job=self._out.job, step=current.step, phases=scaled))


def _scale(phase: PhaseTime, factor: float) -> PhaseTime:
    if factor == 1.0:
        return phase
    return PhaseTime(
        min_s=None if phase.min_s is None else phase.min_s * factor,
        max_s=None if phase.max_s is None else phase.max_s * factor,
        by_rank={rank: value * factor for rank, value in phase.by_rank.items()},
    )
