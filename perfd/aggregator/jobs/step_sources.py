"""Which of its sources shows a job's steps: its own process, its log, its NCCL operations, or arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfd.model import HOOK_MARK, StepSource, TrainingStep

_STEPS_BEFORE_ARRIVAL, _STEPS_OF_LINE = 50, 5
"""Steps by operations need ten repeats; operations that show none by so many steps of the log will not soon.
A line counts as so many at most, since they need some seconds, too. Chosen."""


@dataclass(slots=True)
class StepSources:
    """What has shown steps since the job's start."""

    by_operations: bool = False
    """Its NCCL operations do, since nothing better does."""
    by_hook: bool = False
    """The job's own process does."""
    log_has_times: bool = False
    """Its log shows a pace."""
    was_paced: bool = False
    """Steps that history knows had a pace, whatever showed it."""
    communicates: bool = False
    """It has NCCL operations between ranks, which may show steps later."""
    steps_beside_operations: int = 0
    """Steps of the log since then, while the operations show none."""
    _timed_step: int | None = field(default=None, init=False)
    """Of the newest line with a time that came beside steps by operations."""
    _shown_unix_s: float = field(default=0.0, init=False)
    """When what first showed steps by operations was sent."""

    @property
    def by_arrival(self) -> bool:
        """Neither does its log show a pace, nor did anything before a restart, nor its operations."""
        waits = self.communicates and self.steps_beside_operations < _STEPS_BEFORE_ARRIVAL
        return not (self.by_operations or self.log_has_times or self.was_paced or waits)

    @property
    def used(self) -> StepSource:
        """What shows the job's steps, if it has any."""
        if self.by_operations:
            return StepSource.NCCL
        return StepSource.ARRIVAL if self.by_arrival else StepSource.LOG

    def line(self, line: TrainingStep) -> None:
        """Note a line that shows steps, and not operations any more."""
        self.by_operations = False
        self.by_hook = self.by_hook or HOOK_MARK in line.extras
        self.log_has_times = self.log_has_times or shows_pace(line)
        if self.communicates:
            self.steps_beside_operations += min(line.steps_covered, _STEPS_OF_LINE)

    def operations_show(self, rows: Sequence[TrainingStep], sent_unix_s: float) -> None:
        """Note what operations show of steps, by what was sent then."""
        if rows and not self.by_operations:
            self.by_operations, self._shown_unix_s = True, sent_unix_s

    def takes_over(self, line: TrainingStep, made_unix_s: float) -> bool:
        """Whether lines show the pace better than operations do: one step alone may be a bar's last word.

        One that was printed before operations showed steps does: which comes first in a batch is chance.
        """
        if HOOK_MARK in line.extras:
            return True
        if line.step_time_s is None:
            return False
        if made_unix_s <= self._shown_unix_s:
            return True
        before, self._timed_step = self._timed_step, line.step
        return before is not None and before != line.step


def shows_pace(line: TrainingStep) -> bool:
    """Whether a line says how long steps take."""
    rates = (line.step_time_s, line.tokens_per_s, line.samples_per_s, line.flops_per_s_per_gpu)
    return any(rate is not None for rate in rates)
