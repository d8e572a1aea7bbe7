"""Times a training loop from inside, without ever making it wait; needs nothing, and uses torch.

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

Phases are timed by CUDA events that are read steps later, when the GPU has long passed them: nothing here
synchronises. They are NVTX ranges too. What was measured goes to the agent of the node over a Unix datagram
socket that never blocks; without an agent nothing is recorded at all.

`benchmark(fn)` times a function the way it should be done. docs/hook.md has both.
"""

from perfd.hook.marks import Mark
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
