"""What a function under measurement runs on: a GPU as torch drives it, or the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

from perfd.hook.marks import HostMark, Mark, cuda_of_torch, event_of


class Device(Protocol):
    """Tells the time of work, and what else has to be known about it."""

    clock: str
    """`cuda` or `host`."""

    def new_mark(self) -> Mark:
        """A point on the clock, to be set later."""

    def synchronise(self) -> None:
        """Wait until all work is done."""

    def allocated_bytes(self) -> int:
        """Memory of the device that is in use."""

    def synchronises(self, fn: Callable[[], object]) -> bool:
        """Whether a call of `fn`, which is made, has the host wait for the device."""


def device_here() -> Device:
    """The GPU of the current CUDA stream, else the host."""
    cuda = cuda_of_torch()
    return _Cuda(cuda) if cuda else _Host()


class _Host:
    clock = "host"

    def new_mark(self) -> Mark:
        return HostMark()

    def synchronise(self) -> None:
        """The work is done when its call is over."""

    def allocated_bytes(self) -> int:
        return 0

    def synchronises(self, _fn: Callable[[], object]) -> bool:
        return False


class _Cuda:
    clock = "cuda"

    def __init__(self, cuda: Any) -> None:  # noqa: ANN401  (a module)
        self._cuda = cuda
        self.new_mark = event_of(cuda)

    def synchronise(self) -> None:
        self._cuda.synchronize()

    def allocated_bytes(self) -> int:
        return int(self._cuda.memory_allocated())

    def synchronises(self, fn: Callable[[], object]) -> bool:
        """By torch's own watch and by counting calls."""
        cuda = self._cuda
        calls = 0
        plain = cuda.synchronize

        def counting(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (passed through)
            nonlocal calls
            calls += 1
            plain(*args, **kwargs)

        mode = cuda.get_sync_debug_mode()
        # The modes of torch warn of what waits in passing; who says it outright is counted.
        cuda.synchronize = counting
        try:
            cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fn()
        finally:
            cuda.set_sync_debug_mode(mode)
            cuda.synchronize = plain
        return calls > 0 or any("synchroniz" in str(warning.message) for warning in caught)
