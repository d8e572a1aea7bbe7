"""What occupies a GPU and what a host asks of it; without numpy, for agents too."""

from __future__ import annotations

from enum import IntEnum


class OperationKind(IntEnum):
    """What occupies the GPU."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    """A copy or a fill."""


class HostCallKind(IntEnum):
    """What the host is doing in a call into the driver."""

    LAUNCH = 0
    """Puts a kernel or a graph of kernels on the GPU."""
    SYNCHRONIZE = 1
    """Waiting for the GPU."""
    OTHER = 2
    COPY = 3
    """Puts an asynchronous copy or fill on the GPU."""
    CAPTURE_BEGIN = 4
    """From here on this thread's launches go into a graph and not to the GPU."""
    CAPTURE_END = 5
