"""The FLOPs of one step, counted by torch."""

from __future__ import annotations

from typing import Any


class FlopsOfStep:
    """A count that has begun. Counting slows the step, so its time is of no use."""

    def __init__(self, counter: Any) -> None:  # noqa: ANN401  (torch's FlopCounterMode)
        self._counter = counter
        counter.__enter__()

    def end(self) -> float | None:
        """The FLOPs since the beginning, of this process; None if no operation was counted."""
        self._counter.__exit__(None, None, None)
        return float(self._counter.get_total_flops()) or None


def flops_of_step() -> FlopsOfStep | None:
    """Begin to count; None without torch."""
    try:
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415
    except ImportError:
        return None
    return FlopsOfStep(FlopCounterMode(display=False))
