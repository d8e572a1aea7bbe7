"""Points on the clock that times work: CUDA events where torch and a GPU are, else instants of the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Mark(Protocol):
    """A point on the clock that times the work: a CUDA event, or an instant of the host."""

    def record(self) -> None:
        """Set the mark where the work stands now."""

    def query(self) -> bool:
        """Whether the work has passed it; never waits."""

    def elapsed_time(self, end: Any, /) -> float:  # noqa: ANN401  (a mark of the same kind)
        """Milliseconds until `end`."""


class HostMark:
    """An instant of the host's clock, for work that no GPU does."""

    __slots__ = ("_at_s",)

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: HostMark, /) -> float:
        return 1000 * (end._at_s - self._at_s)


def seconds(start: Mark, end: Mark) -> float:
    """The time between two marks that the work has passed."""
    return start.elapsed_time(end) / 1000


def cuda_of_torch() -> Any:  # noqa: ANN401  (a module)
    """`torch.cuda` where it works, else None.

    Imported when something is timed and not before: the agent needs names of this package only.
    """
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        # The hook works without, by the host's clock.
        return None
    return torch.cuda if torch.cuda.is_available() else None


def nvtx_of(cuda: Any) -> Any:  # noqa: ANN401  (a module)
    """Its NVTX; None where torch was built without: it says so when it is called."""
    try:
        cuda.nvtx.mark("perfd")
    except RuntimeError:
        return None
    return cuda.nvtx


def event_of(cuda: Any) -> Callable[[], Mark]:  # noqa: ANN401  (a module)
    """What makes its timing events."""
    return lambda: cuda.Event(enable_timing=True)
