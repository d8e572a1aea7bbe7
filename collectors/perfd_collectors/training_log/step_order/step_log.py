"""Puts a job's progress lines in order: repeats, restarts, steps covered by averages, matching timers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from perfd.model import EventKind, PhaseTime, StepPhases, TrainingStep
from perfd_collectors.training_log.parser_output import ParserOutput
from perfd_collectors.training_log.step_order.second_run import OtherSource, RepeatedLines

_REMEMBERED_STEPS = 4096
"""Steps kept to detect repeated lines; bounds memory."""
_SAME_LINE_NS = 120 * 10**9
"""Ranks print a step's line within 2 minutes; a later line repeats the step. Chosen, not measured."""


_LINES_APART = 20
_FEWEST_RETURNS = 2
"""A restart goes back, and returns to the step from which it went back only after many lines. Both chosen."""


class ProgressSource(IntEnum):
    """Which library prints a progress line. Trainers build on each other; the highest one is used."""

    UNTIMED_LOOP = 1
    """A loop's own line, without a time."""
    METRIC_FILE = 2
    """A logger's own file, such as TensorBoard's."""
    PROGRESS_BAR = 3
    LOOP = 4
    """A loop's own line, with a time or a rate."""
    DEEPSPEED = 5
    """The engine of many trainers: its lines count until the trainer's own appear."""
    HUGGING_FACE = 6
    TRAINER = 7
    OWN_PATTERN = 8
    """A pattern that the user configured."""


@dataclass(frozen=True, slots=True)
class _Coverage:
    """Which steps the averages of a progress line cover."""

    steps: int
    warmup: bool = False
    scale: float | None = 1.0
    """Factor that converts the timers to time per step; None when unknown."""


@dataclass(slots=True)
class _Run:
    """One run of the trainer, from a start or resume to the next one."""

    fresh: bool = False
    """The trainer has started, and no progress line has come yet."""
    begin: int | None = None
    """The step from which it continued; 0 for a fresh start, None when unknown."""
    reset_at: int | None = None
    """The last step after which the trainer reset its averages."""
    holds_first: bool = False
    """The averages still include the run's first step."""

    def cover(self, step: int, *, keeps_first: bool, interval: int | None) -> _Coverage:
        """The coverage of the run's next line."""
        if self.fresh or (self.reset_at is None and step <= 1):
            return self._first_line(step, keeps_first=keeps_first, interval=interval)
        since = step - self.reset_at if self.reset_at is not None else 1
        first = step - since + 1
        self.reset_at = step
        if not self.holds_first:
            return _Coverage(min(since, interval) if interval else since)
        self.holds_first = False
        # If it is not the next multiple of the interval, lines were lost.
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
            # After a fresh start the first line covers one interval, so its timers need no scaling.
            return _Coverage(since, warmup=True, scale=None if self.begin else 1.0)
        covered = min(since, interval)
        return _Coverage(covered, warmup=True, scale=interval / covered)


@dataclass(slots=True)
class _Alternation:
    """Whether steps go back and forth, as if two runs print different steps at the same time."""

    _went_back_from: int | None = None
    _lines: int = 0
    _returns: int = 0

    def next(self, step: int, last: int | None) -> bool:
        """Note a new step, after `last`; True once steps have returned twice to where they went back from."""
        if last is not None and step <= last:
            self._went_back_from, self._lines = last, 0
            return False
        self._lines += 1
        if self._went_back_from is not None and step > self._went_back_from and self._lines <= _LINES_APART:
            self._went_back_from = None
            self._returns += 1
        return self._returns >= _FEWEST_RETURNS


@dataclass(slots=True)
class _Current:
    """The newest progress line, to which the next timers belong."""

    step: int
    scale: float | None
    """As in `_Coverage`; also None for a truncated line, whose step is unknown."""
    has_phases: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    """A progress line, and what is known of its log."""

    step: TrainingStep
    printed_ns: int | None
    keeps_first: bool
    interval: int | None


class StepLog:
    """Turns the progress lines and timer blocks of a job into records."""

    def __init__(self, out: ParserOutput) -> None:
        self._out = out
        self._run = _Run()
        self._family: ProgressSource | None = None
        self._seen: OrderedDict[int, int | None] = OrderedDict()
        self._steps = 0
        self._matcher = _PhaseMatcher(out)
        self._repeated: RepeatedLines[_Line] = RepeatedLines()
        self._alternating = _Alternation()
        self._others: dict[ProgressSource, OtherSource] = {}
        self._two_runs = False
        self.now_s: float | None = None
        """By a steady clock, while lines are read as they are printed."""

    @property
    def counted(self) -> int:
        """How many progress lines were reported."""
        return self._steps

    @property
    def last_step(self) -> int | None:
        """The newest step that was reported."""
        return next(reversed(self._seen), None)

    def attach(self) -> None:
        """Note that reading starts in the middle of a log: timers before the first line are dropped."""
        self._matcher.truncated_line()

    def started(self, printed_ns: int | None = None) -> None:
        """Note that the trainer starts or resumes: the next progress line is the first of a run."""
        if self._run.fresh and self._run.begin is not None:
            return
        kind, message = EventKind.JOB_STARTED, "The trainer started."
        if self._steps:
            kind, message = EventKind.RESTARTED, "The trainer started again."
        self._out.event(kind, message, printed_ns=printed_ns)
        self.another_process()
        self._run.begin = 0

    def another_process(self) -> None:
        """Note that lines which follow are of a process that begins: what they repeat was run again."""
        self._run = _Run(fresh=True)
        self._seen.clear()
        self._repeated.restart()
        self._matcher.restart()

    def resumed(self, step: int) -> None:
        """Note that a checkpoint of `step` was loaded."""
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
        anew: bool = False,
    ) -> None:
        """Add a progress line.

        `keeps_first`: the first line of a run does not reset the averages. `interval` is the
        trainer's log interval, by which it divides timers regardless of the number of steps. `anew`: its
        source restarted, so a repeated step was run again.
        """
        if self._family is not None and family < self._family:
            self._other(step.step, family)
            return
        if family != self._family:
            last, from_loop = self.last_step, self._family is not None and self._family <= ProgressSource.LOOP
            self._family = family
            self._run.reset_at = None
            self._seen.clear()
            if from_loop and last is not None and step.step <= last:
                # The other source was here first: counted again, it would look like a restart.
                self._run.reset_at = step.step
                self._seen[last] = None
                return
        line = _Line(step, printed_ns, keeps_first, interval)
        if anew or not self._is_repeat(step.step, printed_ns):
            self._new(line)
            return
        behind = self._lines_after(step.step)
        lines = self._repeated.begin_again(step.step, line, self.now_s, behind=behind)
        if lines:
            last = self.last_step
            message = f"Steps restarted at {lines[0].step.step}, after {last}: a restart, or another run."
            self._out.event(EventKind.RESTARTED, message, printed_ns=lines[0].printed_ns)
            self._run = _Run(fresh=True)
            self._seen.clear()
            for one in lines:
                self._new(one)
        elif self._repeated.diverge:
            self._note_two_runs()

    def _new(self, line: _Line) -> None:
        """Add a line whose step is new or was run again."""
        number, last = line.step.step, self.last_step
        if last is not None and number <= last and not self._run.fresh:
            if self._two_runs:
                return
            # The aggregator detects this from the steps; only a start of the trainer is an event.
            self._run = _Run(fresh=True)
            self._seen.clear()
        if self._alternating.next(number, last):
            self._note_two_runs()
        self._repeated.new_step(self.now_s)
        coverage = self._run.cover(number, keeps_first=line.keeps_first, interval=line.interval)
        self._remember(number, line.printed_ns)
        self._out.step(line.step, line.printed_ns, steps_covered=coverage.steps, warmup=coverage.warmup)
        self._matcher.line(_Current(number, coverage.scale))

    def _other(self, step: int, family: ProgressSource) -> None:
        """Note a line of a source that does not count."""
        last = self.last_step
        if last is None or self._two_runs or family is ProgressSource.METRIC_FILE:
            return
        if self._others.setdefault(family, OtherSource()).diverges(step, last):
            self._note_two_runs()

    def _note_two_runs(self) -> None:
        """Report, once, that two training runs print to this log: from now on only one run's steps count."""
        if not self._two_runs:
            self._two_runs = True
            message = "Two training runs print steps to one output, and only one run's steps count."
            self._out.event(EventKind.LOG_ERROR, f"{message} Use a separate perfd run or log for each.")

    def _lines_after(self, step: int) -> int:
        """How many lines were new since that of a step."""
        return next((behind for behind, seen in enumerate(reversed(self._seen)) if seen == step), 0)

    def amend(self, step: TrainingStep) -> None:
        """Add another source's data for the newest step; later it would look like a restart."""
        if step.step == self.last_step:
            self._out.step(replace(step, step_time_s=None), None)

    def phases(self, phases: Mapping[str, PhaseTime]) -> None:
        """Add a block of timers; it is assigned to its progress line."""
        if phases:
            self._matcher.block(phases)

    def timers(self, seconds: Mapping[str, float]) -> None:
        """As `phases`, of timers that have one value."""
        self.phases({name: PhaseTime(max_s=value) for name, value in seconds.items()})

    def truncated_line(self) -> None:
        """Note a progress line with an unreadable step: the timers after it belong to it."""
        self._matcher.truncated_line()

    def _is_repeat(self, step: int, printed_ns: int | None) -> bool:
        """Whether another rank has printed this line already; a repeated step comes later."""
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
    """Assigns each block of timers to a progress line.

    A trainer prints the line before the block, but a launcher that reads its two
    outputs separately may print the block first. Where both are possible, the
    more frequent order so far decides.
    """

    def __init__(self, out: ParserOutput) -> None:
        self._out = out
        self._current: _Current | None = None
        self._early: Mapping[str, PhaseTime] | None = None
        self._ambiguous: Mapping[str, PhaseTime] | None = None
        self._after = 0
        self._before = 0

    def restart(self) -> None:
        self._current = self._early = self._ambiguous = None
        self._after = self._before = 0

    def truncated_line(self) -> None:
        self._resolve_ambiguous()
        self._current, self._early = _Current(-1, None), None

    def line(self, current: _Current) -> None:
        self._resolve_ambiguous()
        self._current = current
        early, self._early = self._early, None
        if early is None:
            return
        if self._after > self._before:
            # Blocks usually follow their lines: this one belongs to the line only if no other follows.
            self._ambiguous = early
        else:
            self._before += 1
            self._give(early)

    def block(self, phases: Mapping[str, PhaseTime]) -> None:
        if self._current is not None and not self._current.has_phases:
            self._ambiguous = None
            self._after += 1
            self._give(phases)
        else:
            self._early = phases

    def _resolve_ambiguous(self) -> None:
        ambiguous, self._ambiguous = self._ambiguous, None
        if ambiguous is not None:
            self._before += 1
            self._give(ambiguous)

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
