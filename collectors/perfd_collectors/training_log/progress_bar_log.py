"""What the progress bars of a job show of its training, over all of its logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_MAX_WAITING = 1024
"""Lines without a step, or bars without a line, that wait for each other; bounds memory."""
DENSE_STEPS = 20
"""Lines that are at most so many steps apart count as the steps; else the bar does. Chosen, not measured."""


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """The training bar as it was drawn."""

    step: int
    step_time_s: float | None
    """By the bar's own rate, a mean over its last steps."""


Resume = Callable[[DrawnStep], None]


@dataclass(slots=True)
class _Waiting:
    resume: Resume
    near: DrawnStep | None
    """The bar in front of the line, in the same log."""


@dataclass(slots=True)
class BarLog:
    """Gives lines without a step the one of the training bar beside them.

    A program that prints while it shows a bar clears the bar, prints, and draws it again. So the bar
    that is drawn after the n-th clearing has the step of the n-th line, even where bars and lines go to
    different files.
    """

    total: int | None = None
    """Steps of the training bar; None before the first one."""
    drawn: DrawnStep | None = None
    """Newest training bar of any log."""
    line_steps: int | None = None
    """Steps between two lines beside the bar, 0 while these are not known; None without such lines."""
    _clears: bool = False
    _written: deque[DrawnStep] = field(default_factory=lambda: deque(maxlen=_MAX_WAITING))
    _waiting: deque[_Waiting] = field(default_factory=deque)

    def draw(self, step: DrawnStep, *, cleared: bool) -> None:
        """Note that the training bar was drawn; `cleared`: after something else was printed."""
        self.drawn = step
        if not cleared:
            return
        self._clears = True
        if self._waiting:
            self._waiting.popleft().resume(step)
        else:
            self._written.append(step)

    def when_drawn(self, resume: Resume, near: DrawnStep | None) -> None:
        """Call `resume` with the step at which a line was printed, now or when the bar shows it."""
        if self._waiting and not self._clears:
            # A bar that is not cleared for a line will not be for the next one.
            self.flush()
        if self._written:
            resume(self._written.popleft())
        elif len(self._waiting) < _MAX_WAITING:
            self._waiting.append(_Waiting(resume, near))

    def flush(self) -> None:
        """Without a bar that is cleared, a line belongs to the bar in front of it; without any, to none."""
        if self._clears:
            return
        while self._waiting and self._waiting[0].near is not None:
            waiting = self._waiting.popleft()
            if waiting.near is not None:
                waiting.resume(waiting.near)

    def restart(self) -> None:
        """Forget the bars of an earlier run."""
        self.total = self.drawn = self.line_steps = None
        self._written.clear()
        self._waiting.clear()
