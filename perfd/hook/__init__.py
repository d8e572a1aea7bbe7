"""Times a training loop from inside, without ever blocking it. Uses torch if available.

    from perfd import hook

    timer = hook.StepTimer()
    for batch in timer.batches(loader):
        with timer.step():
            with timer.phase("forward"):
                loss = model(batch)
            with timer.phase("backward"):
                loss.backward()
            with timer.phase("optimizer"):
                optimizer.step()

Phases are timed by CUDA events that are read steps later, when the GPU has passed them: nothing here
synchronizes. Phases are also NVTX ranges. Measurements go to the node's agent over a non-blocking Unix
datagram socket; without an agent nothing is recorded.

`benchmark(fn)` times a function correctly. Both are described in docs/hook.md.
"""

from perfd.hook.gpu_timestamps import Mark
from perfd.hook.measurement import Measurement, benchmark
from perfd.hook.sender import NODE_VARIABLE, SOCKET_VARIABLE, default_socket
from perfd.hook.timer import FORMAT, StepTimer

__all__ = [
    "FORMAT",
    "NODE_VARIABLE",
    "SOCKET_VARIABLE",
    "Mark",
    "Measurement",
    "StepTimer",
    "benchmark",
    "default_socket",
]
