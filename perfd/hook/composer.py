"""For MosaicML's Composer: `Trainer(..., callbacks=[PerfdCallback()])`."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from perfd.hook.timer import StepTimer

try:
    from composer import Callback
except ImportError:
    Callback = object

_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "fp32"}


class ComposerSteps(Callback):  # type: ignore[misc]
    """Reports steps, forward, backward, data loading, samples and tokens of a Composer `Trainer`.

    Without an agent it does nothing. `count_flops` counts the FLOPs of one step, for MFU; `options` are
    those of `perfd.hook.StepTimer`. Tokens are those that the data specification counts.
    """

    def __init__(self, *, count_flops: bool = False, **options: Any) -> None:  # noqa: ANN401  (passed on)
        super().__init__()
        self._options = {"count_flops": count_flops, **options}
        self._timer: StepTimer | None = None
        self._idle_since_s = 0.0
        self._seen: tuple[float, float] = (0.0, 0.0)
        self._phases = contextlib.ExitStack()

    def fit_start(self, state: Any, _logger: Any) -> None:  # noqa: ANN401
        """Create the timer: now ranks and precision are known."""
        precision = _PRECISIONS.get(str(getattr(state.precision, "value", state.precision)))
        options = {"report_steps": True, "precision": precision, **self._options}
        self._timer = StepTimer(first_step=int(state.timestamp.batch) + 1, **options)
        self._seen = _seen(state)
        self._idle_since_s = time.perf_counter()

    def before_dataloader(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """Begin to wait for data."""
        self._idle_since_s = time.perf_counter()

    def batch_start(self, state: Any, _logger: Any) -> None:  # noqa: ANN401
        """Begin a step; its data is there."""
        if self._timer is not None:
            waited_s = time.perf_counter() - self._idle_since_s
            self._timer.begin_step(int(state.timestamp.batch) + 1, data_s=waited_s)

    def before_forward(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """Begin the forward phase of a micro-batch."""
        if self._timer is not None:
            self._phases.enter_context(self._timer.phase("forward"))

    def after_forward(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """End it."""
        self._phases.close()

    def before_backward(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """Begin the backward phase of a micro-batch."""
        if self._timer is not None:
            self._phases.enter_context(self._timer.phase("backward"))

    def after_backward(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """End it."""
        self._phases.close()

    def batch_end(self, state: Any, _logger: Any) -> None:  # noqa: ANN401
        """End the step."""
        self._phases.close()
        if self._timer is None:
            return
        before, self._seen = self._seen, _seen(state)
        samples, tokens = (now - then for now, then in zip(self._seen, before, strict=True))
        self._timer.count(samples=samples or None, tokens=tokens or None)
        self._timer.end_step()
        self._idle_since_s = time.perf_counter()

    def eval_start(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """An evaluation does not belong to a step."""
        if self._timer is not None:
            self._timer.pause()

    def fit_end(self, _state: Any, _logger: Any) -> None:  # noqa: ANN401
        """Send the last steps."""
        if self._timer is not None:
            self._timer.pause()
            self._timer.close()


def _seen(state: Any) -> tuple[float, float]:  # noqa: ANN401
    """Samples and tokens so far, of the whole job."""
    return float(state.timestamp.sample.value), float(state.timestamp.token.value)


PerfdCallback = ComposerSteps
"""The name to use."""
