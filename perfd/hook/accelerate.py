"""For Hugging Face Accelerate: `Accelerator(log_with=PerfdTracker())`, and `accelerator.log()` per step."""

from __future__ import annotations

from typing import Any

from perfd.hook.timer import StepTimer

try:
    from accelerate.tracking import GeneralTracker
except ImportError:
    GeneralTracker = object

_SAMPLES = ("samples", "num_samples")
_TOKENS = ("tokens", "num_tokens")


class PerfdTracker(GeneralTracker):  # type: ignore[misc]
    """Reports a step at each `accelerator.log(values, step=N)`; its time is that since the last one.

    Values named `samples` and `tokens` are those of the step, of the whole job. Without an agent it does
    nothing. `options` are those of `perfd.hook.StepTimer`.
    """

    name = "perfd"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (passed on)
        super().__init__()
        self._options = {"report_steps": True, **options}
        self._timer: StepTimer | None = None
        self._next = 1

    @property
    def tracker(self) -> StepTimer | None:
        """The timer, once training has begun."""
        return self._timer

    def start(self) -> None:
        """Begin with `accelerator.init_trackers`."""
        self._timer = StepTimer(**self._options)
        self._timer.begin_step(self._next)

    def store_init_configuration(self, _values: Any) -> None:  # noqa: ANN401
        """The configuration is not kept."""

    def log(self, values: Any, step: int | None = None, **_: Any) -> None:  # noqa: ANN401
        """End the step of this line, and begin the next one."""
        if self._timer is None or (step is not None and step < self._next):
            return
        steps = 1 if step is None else step - self._next + 1
        if steps == 1:
            self._timer.count(samples=_amount(values, _SAMPLES), tokens=_amount(values, _TOKENS))
            self._timer.end_step()
        # The time of several steps is that of none.
        self._next += steps
        self._timer.begin_step(self._next)

    def finish(self) -> None:
        """Send the last steps."""
        if self._timer is not None:
            self._timer.close()


def _amount(values: Any, names: tuple[str, ...]) -> float | None:  # noqa: ANN401
    return next((float(values[name]) for name in names if name in values), None)
