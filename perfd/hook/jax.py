"""For JAX: `with steps.step(n): state = train_step(state, batch)`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from perfd.hook.timer import StepTimer

try:
    import jax
except ImportError:
    jax = None


class JaxSteps:
    """Times steps by the host's clock, and marks them for JAX's profiler (`StepTraceAnnotation`).

    JAX runs steps asynchronously: the host waits for the device once a few steps are queued, so the time from
    step to step is the device's from then on. Nothing here waits. `flops` are those of a step on one device
    (`compiled.cost_analysis()["flops"]`), `samples` and `tokens` those of all devices, if constant.
    Without an agent only the annotation is made. `options` are those of
    `perfd.hook.StepTimer`.
    """

    def __init__(
        self,
        *,
        samples: float | None = None,
        tokens: float | None = None,
        flops: float | None = None,
        **options: Any,  # noqa: ANN401  (passed on)
    ) -> None:
        self._amounts = {"samples": samples, "tokens": tokens, "flops": flops}
        self.timer = StepTimer(**{"report_steps": True, "nvtx": False, **options})

    @contextlib.contextmanager
    def step(self, number: int | None = None) -> Iterator[None]:
        """Wrap one step, `number` if it is not the next one."""
        self.timer.begin_step(number)
        with (
            contextlib.nullcontext()
            if jax is None
            else jax.profiler.StepTraceAnnotation("train", step_num=number or 0)
        ):
            yield
        self.timer.count(**self._amounts)
        self.timer.end_step()

    def close(self) -> None:
        """Send the last steps."""
        self.timer.pause()
        self.timer.close()
