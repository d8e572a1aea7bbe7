"""For Hugging Face transformers, and trainers on it: `Trainer(..., callbacks=[PerfdCallback()])`."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from perfd.hook.timer import StepTimer

try:
    from transformers import TrainerCallback
except ImportError:
    TrainerCallback = object


class TrainerSteps(TrainerCallback):  # type: ignore[misc]
    """Reports steps, the optimizer's time, data loading, samples and tokens of a `Trainer`.

    Without an agent it does nothing. `count_flops` counts the FLOPs of one step, for MFU; `options` are
    those of `perfd.hook.StepTimer`. Tokens need the Trainer's `include_num_input_tokens_seen`.
    """

    def __init__(self, *, count_flops: bool = False, **options: Any) -> None:  # noqa: ANN401  (passed on)
        self._options = {"count_flops": count_flops, **options}
        self._timer: StepTimer | None = None
        self._idle_since_s = 0.0
        self._tokens: float | None = None
        self._phases = contextlib.ExitStack()

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:  # noqa: ANN401
        """Create the timer: now ranks and precision are known."""
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else None
        options = {"report_steps": True, "precision": precision, **self._options}
        self._timer = StepTimer(first_step=state.global_step + 1, **options)
        self._idle_since_s = time.perf_counter()

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:  # noqa: ANN401
        """Begin a step; its batches are loaded."""
        if self._timer is not None:
            waited_s = time.perf_counter() - self._idle_since_s
            self._timer.begin_step(state.global_step + 1, data_s=waited_s)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Begin the optimizer's phase."""
        if self._timer is not None:
            self._phases.enter_context(self._timer.phase("optimizer"))

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """End the optimizer's phase."""
        self._phases.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """End the step."""
        if self._timer is None:
            return
        self._phases.close()
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        seen, before = float(state.num_input_tokens_seen), self._tokens
        self._tokens = seen
        tokens = seen - before if before is not None and seen > before else None
        self._timer.count(samples=samples, tokens=tokens)
        self._timer.end_step()
        if control.should_save or control.should_evaluate:
            self._timer.pause()
        self._rest()

    def on_log(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Do not count logging as data loading."""
        self._rest()

    def on_evaluate(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Nor evaluation."""
        self._rest()

    def on_save(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Nor a checkpoint."""
        self._rest()

    def on_train_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Send the last steps."""
        if self._timer is not None:
            self._timer.pause()
            self._timer.close()

    def _rest(self) -> None:
        self._idle_since_s = time.perf_counter()


PerfdCallback = TrainerSteps
"""The name to use."""
