"""The device of a measured function: a GPU through torch, or the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

from perfd.hook.gpu_timestamps import HostMark, Mark, cuda_of_torch, event_of


class Device(Protocol):
    """Times work on a device, and provides its memory use and synchronization."""

    clock: str
    """`cuda` or `host`."""

    def new_mark(self) -> Mark:
        """A new point in time, to be recorded later."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def allocated_bytes(self) -> int:
        """Allocated memory of the device."""

    def synchronizes(self, fn: Callable[[], object]) -> bool:
        """Call `fn`; returns whether the call made the host wait for the device."""


def device_here() -> Device:
    """The GPU of the current CUDA stream, else the host."""
    cuda = cuda_of_torch()
    return _Cuda(cuda) if cuda else _Host()


class _Host:
    clock = "host"

    def new_mark(self) -> Mark:
        return HostMark()

    def synchronize(self) -> None:
        """Work on the host is done when its call returns."""

    def allocated_bytes(self) -> int:
        return 0

    def synchronizes(self, _fn: Callable[[], object]) -> bool:
        return False


class _Cuda:
    clock = "cuda"

    def __init__(self, cuda: Any) -> None:  # noqa: ANN401  (a module)
        self._cuda = cuda
        self.new_mark = event_of(cuda)

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def allocated_bytes(self) -> int:
        return int(self._cuda.memory_allocated())

    def synchronizes(self, fn: Callable[[], object]) -> bool:
        """By torch's sync debug mode, and by counting calls of `torch.cuda.synchronize`."""
        cuda = self._cuda
        calls = 0
        plain = cuda.synchronize

        def counting(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (passed through)
            nonlocal calls
            calls += 1
            plain(*args, **kwargs)

        mode = cuda.get_sync_debug_mode()
        # Torch's debug mode warns about implicit synchronization; explicit calls are counted.
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
