"""For Lightning: `Trainer(..., callbacks=[PerfdCallback()])`."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from perfd.hook.timer import StepTimer

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        Callback = object

_PRECISIONS = ("bf16", "16", "32")


class LightningSteps(Callback):  # type: ignore[misc]
    """Reports steps, backward, optimizer and data loading of a Lightning `Trainer`.

    A step is one of the optimizer (`trainer.global_step`). Without an agent it does nothing. `samples` and
    `tokens` are those of a step of the whole job, if they are constant; `options` are those of
    `perfd.hook.StepTimer`.
    """

    def __init__(
        self,
        *,
        samples: float | None = None,
        tokens: float | None = None,
        count_flops: bool = False,
        **options: Any,  # noqa: ANN401  (passed on)
    ) -> None:
        self._amounts = {"samples": samples, "tokens": tokens}
        self._options = {"count_flops": count_flops, **options}
        self._timer: StepTimer | None = None
        self._step: int | None = None
        self._idle_since_s = 0.0
        self._waited_s = 0.0
        self._phases = contextlib.ExitStack()

    def on_train_start(self, trainer: Any, _module: Any) -> None:  # noqa: ANN401
        """Create the timer: now ranks and precision are known."""
        said = str(trainer.precision)
        precision = next((name for name in _PRECISIONS if said.startswith(name)), None)
        precision = {"16": "fp16", "32": "fp32"}.get(precision or "", precision)
        options = {"report_steps": True, "precision": precision, **self._options}
        self._timer = StepTimer(first_step=trainer.global_step + 1, **options)
        self._idle_since_s = time.perf_counter()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401
        """Begin a step with its first batch."""
        if self._timer is None:
            return
        self._waited_s += time.perf_counter() - self._idle_since_s
        if self._step is None:
            self._step = trainer.global_step + 1
            self._timer.begin_step(self._step, data_s=self._waited_s)
            self._waited_s = 0.0

    def on_before_backward(self, *_: Any) -> None:  # noqa: ANN401
        """Begin the backward phase."""
        if self._timer is not None:
            self._phases.enter_context(self._timer.phase("backward"))

    def on_after_backward(self, *_: Any) -> None:  # noqa: ANN401
        """End the backward phase."""
        self._phases.close()

    def on_before_optimizer_step(self, *_: Any) -> None:  # noqa: ANN401
        """Begin the optimizer's phase, which ends with the batch."""
        if self._timer is not None:
            self._phases.enter_context(self._timer.phase("optimizer"))

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401
        """End the step if the optimizer made one."""
        self._phases.close()
        if self._timer is not None and self._step is not None and trainer.global_step >= self._step:
            self._timer.count(**self._amounts)
            self._timer.end_step()
            self._step = None
        self._idle_since_s = time.perf_counter()

    def on_validation_start(self, *_: Any) -> None:  # noqa: ANN401
        """An evaluation does not belong to a step."""
        if self._timer is not None:
            self._timer.pause()

    def on_validation_end(self, *_: Any) -> None:  # noqa: ANN401
        """Nor to data loading."""
        self._idle_since_s = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:  # noqa: ANN401
        """Send the last steps."""
        if self._timer is not None:
            self._timer.pause()
            self._timer.close()


PerfdCallback = LightningSteps
"""The name to use."""
