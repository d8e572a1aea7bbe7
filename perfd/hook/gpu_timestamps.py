"""Points in time: CUDA events with torch and a GPU, else the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Mark(Protocol):
    """A point in time of the work: a CUDA event, or a time of the host's clock."""

    def record(self) -> None:
        """Record the current position of the work."""

    def query(self) -> bool:
        """Whether the work has reached it; never blocks."""

    def elapsed_time(self, end: Any, /) -> float:  # noqa: ANN401  (a mark of the same kind)
        """Milliseconds until `end`."""


class HostMark:
    """A time of the host's clock, for work on the host."""

    __slots__ = ("_at_s",)

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: HostMark, /) -> float:
        return 1000 * (end._at_s - self._at_s)


def seconds(start: Mark, end: Mark) -> float:
    """Seconds between two marks that the work has reached."""
    return start.elapsed_time(end) / 1000


def cuda_of_torch() -> Any:  # noqa: ANN401  (a module)
    """`torch.cuda` if available, else None.

    Imported on first use: the agent imports this package without torch.
    """
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        # The hook then uses the host's clock.
        return None
    return torch.cuda if torch.cuda.is_available() else None


def nvtx_of(cuda: Any) -> Any:  # noqa: ANN401  (a module)
    """Torch's NVTX; None when torch was built without it, which only a call reveals."""
    try:
        cuda.nvtx.mark("perfd")
    except RuntimeError:
        return None
    return cuda.nvtx


def event_of(cuda: Any) -> Callable[[], Mark]:  # noqa: ANN401  (a module)
    """A function that creates timing events."""
    return lambda: cuda.Event(enable_timing=True)
