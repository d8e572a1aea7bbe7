"""For torchtitan, which has no callbacks: `watch(trainer)` between `config.build()` and `trainer.train()`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from perfd.hook.timer import StepTimer


class TitanSteps:
    """Reports steps, data loading and tokens of a torchtitan `Trainer`, whose `train_step` it wraps.

    A step is `train_step`: checkpoints and validation are apart from it. Tokens are those of the labels, of
    the whole job; FLOPs are the model's own count for MFU, whose peak is that of `precision` (bf16). Without
    an agent nothing is sent. `options` are those of `perfd.hook.StepTimer`.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:  # noqa: ANN401  (duck-typed; passed on)
        self._trainer = trainer
        self._train_step: Callable[[Iterator[Any]], Any] = trainer.train_step
        self._waited_s = 0.0
        self._tokens = 0
        self.timer = StepTimer(**{"report_steps": True, "precision": "bf16", **options})

    def train_step(self, batches: Iterator[Any]) -> object:
        """A step of the trainer's loop, timed."""
        self._waited_s, self._tokens = 0.0, 0
        self.timer.begin_step(int(self._trainer.step))
        result = self._train_step(self._counted(batches))
        dense = getattr(self._trainer.metrics_processor, "num_flops_per_token", 0)
        apart = self._trainer.parallel_dims.non_data_parallel_size
        ranks = self._trainer.parallel_dims.world_size
        self.timer.count(
            tokens=self._tokens * ranks / apart or None,
            flops=self._tokens * dense / apart if dense > 0 else None,
        )
        self.timer.end_step(data_s=self._waited_s)
        # A checkpoint or a validation may follow.
        self.timer.pause()
        return result

    def close(self) -> None:
        """Send the last steps."""
        self.timer.close()

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            begun_s = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waited_s += time.perf_counter() - begun_s
            self._tokens += int(batch[1].numel())
            yield batch


def watch(trainer: Any, **options: Any) -> TitanSteps:  # noqa: ANN401  (duck-typed; passed on)
    """Report the steps of a trainer; `options` are those of `perfd.hook.StepTimer`."""
    steps = TitanSteps(trainer, **options)
    trainer.train_step = steps.train_step
    return steps
