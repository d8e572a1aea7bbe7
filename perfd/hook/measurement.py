"""Times a function the way it should be done, and doubts numbers that deserve it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from perfd.formatting import duration
from perfd.hook.device import Device, device_here
from perfd.hook.marks import Mark, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How long a function takes, over `iterations` calls after warming up."""

    iterations: int
    mean_s: float
    median_s: float
    stdev_s: float
    min_s: float
    max_s: float
    clock: str
    """`cuda` events, or the `host`'s clock where there is no GPU."""
    warnings: tuple[str, ...] = ()
    """Why the numbers may not mean what one thinks."""


_LEAST_S = 20e-6
"""Shorter work is about launching it; CUDA events tell half a microsecond apart."""
_FEWEST = 10
"""Fewer calls tell nothing of how the times scatter."""
_NOISY = 0.1
_DRIFT = 0.1
_HOST_BOUND = 0.9


def benchmark(
    fn: Callable[[], object], *, iterations: int = 100, warmup: int = 10, device: Device | None = None
) -> Measurement:
    """Time `fn` on the current CUDA stream, or by the host's clock without a GPU.

    It is called `warmup` times first; the marks are made before the first timed call; and there is one
    synchronisation, at the end. `device` stands in for what is here, for tests.
    """
    if iterations < 1 or warmup < 0:
        raise ValueError("benchmark needs at least one iteration, and no negative warm-up.")
    device = device or device_here()
    for _ in range(warmup):
        fn()
    synchronised = device.synchronises(fn)
    marks = [(device.new_mark(), device.new_mark()) for _ in range(iterations)]
    device.synchronise()
    before_bytes = device.allocated_bytes()
    host_s = _call_between(marks, fn)
    device.synchronise()
    grown_bytes = device.allocated_bytes() - before_bytes
    times_s = [seconds(start, end) for start, end in marks]
    doubts = _doubts(
        times_s,
        warmup=warmup,
        host_s=None if device.clock == "host" else host_s,
        grown_bytes=grown_bytes,
        synchronised=synchronised,
    )
    return Measurement(
        iterations=iterations,
        mean_s=statistics.fmean(times_s),
        median_s=statistics.median(times_s),
        stdev_s=statistics.stdev(times_s) if iterations > 1 else 0.0,
        min_s=min(times_s),
        max_s=max(times_s),
        clock=device.clock,
        warnings=tuple(doubts),
    )


def _call_between(marks: Iterable[tuple[Mark, Mark]], fn: Callable[[], object]) -> float:
    """Call `fn` between each two marks; how long the host took for all."""
    begun_s = time.perf_counter()
    for start, end in marks:
        start.record()
        fn()
        end.record()
    return time.perf_counter() - begun_s


def _doubts(
    times_s: list[float], *, warmup: int, host_s: float | None, grown_bytes: int, synchronised: bool
) -> Iterator[str]:
    median_s = statistics.median(times_s)
    if warmup < 1:
        yield "Without a warm-up the first calls load kernels and allocate memory, and are timed with it."
    if len(times_s) < _FEWEST:
        yield f"{len(times_s)} calls tell nothing of how the times scatter: time {_FEWEST} and more."
    if synchronised:
        yield "The function synchronises inside, so that the GPU idles until the host is back: that is timed."
    if grown_bytes > 0:
        yield f"{grown_bytes} bytes more are allocated after the run: the function keeps what it makes."
    if median_s < _LEAST_S and host_s is None:
        yield (
            f"One call takes {duration(median_s)}, of which reading the clock is a part: put several calls"
            " into one."
        )
    elif median_s < _LEAST_S:
        yield (
            f"One call takes {duration(median_s)}, which is about launching it: put several calls into"
            " one, or use a CUDA graph."
        )
    elif host_s is not None and host_s >= _HOST_BOUND * sum(times_s) and not synchronised:
        yield "The host is as slow as the GPU, so the times are those of launching: use a CUDA graph."
    if len(times_s) >= 20:
        quarter = len(times_s) // 4
        first, last = statistics.median(times_s[:quarter]), statistics.median(times_s[-quarter:])
        if abs(first - last) > _DRIFT * median_s:
            yield "First and last calls take unequal times: warm up longer, or look at the clocks."
        elif statistics.stdev(times_s) > _NOISY * statistics.fmean(times_s):
            yield "The times scatter by more than 10%: use the median, and look for other work beside it."
