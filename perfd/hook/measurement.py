"""Times a function the way it should be done, and doubts numbers that deserve it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfd.formatting import duration
from perfd.hook.device import Device, device_here
from perfd.hook.gpu_timestamps import Mark, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The time of a function over `iterations` calls after warm-up."""

    iterations: int
    mean_s: float
    median_s: float
    stdev_s: float
    min_s: float
    max_s: float
    clock: str
    """`cuda` for CUDA events, or `host` for the host's clock without a GPU."""
    warnings: tuple[str, ...] = ()
    """Reasons why the numbers may be misleading."""


_MIN_TIME_S = 20e-6
"""Shorter calls mostly measure launch overhead; CUDA events have a resolution of 0.5 µs."""
_MIN_CALLS = 10
"""With fewer calls the spread is unknown. This and the numbers below: chosen, not measured."""
_MIN_CALLS_FOR_DRIFT = 20
"""With fewer calls, first and last quarter are too short to compare."""
_MAX_SPREAD_RATIO = 0.1
"""Standard deviation over mean, above which times are noisy."""
_MAX_DRIFT_RATIO = 0.1
"""Difference of first and last quarter over the median, above which times drift."""
_MIN_MODE_RATIO = 0.1
"""Share of calls, above which a group of times is a mode rather than outliers."""
_MIN_MODE_DISTANCE_RATIO = 0.1
"""Distance of two modes over the median, above which the times have two modes."""
_MIN_EXPLAINED_RATIO = 0.85
"""Share of the variance between two modes. The best cut explains 75% of evenly spread times, and 64% of those
with a normal distribution."""
_MIN_MODE_CHANGES = 3
"""From one mode to the other; a drift changes once, and a disturbance twice."""
_HOST_BOUND_RATIO = 0.9
"""Host time over GPU time, above which the host limits the calls."""


def benchmark(
    fn: Callable[[], object], *, iterations: int = 100, warmup: int = 10, device: Device | None = None
) -> Measurement:
    """Time `fn` on the current CUDA stream, or by the host's clock without a GPU.

    It is called `warmup` times first; events are created before the first timed call; the only
    synchronization is at the end. Tests may pass another `device`.
    """
    if iterations < 1 or warmup < 0:
        raise ValueError("benchmark needs iterations >= 1 and warmup >= 0.")
    device = device or device_here()
    for _ in range(warmup):
        fn()
    synchronized = device.synchronizes(fn)
    marks = [(device.new_mark(), device.new_mark()) for _ in range(iterations)]
    device.synchronize()
    before_bytes = device.allocated_bytes()
    host_s = _call_between(marks, fn)
    device.synchronize()
    grown_bytes = device.allocated_bytes() - before_bytes
    times_s = [seconds(start, end) for start, end in marks]
    warnings = _warnings(
        times_s,
        warmup=warmup,
        host_s=None if device.clock == "host" else host_s,
        grown_bytes=grown_bytes,
        synchronized=synchronized,
    )
    return Measurement(
        iterations=iterations,
        mean_s=statistics.fmean(times_s),
        median_s=statistics.median(times_s),
        stdev_s=statistics.stdev(times_s) if iterations > 1 else 0.0,
        min_s=min(times_s),
        max_s=max(times_s),
        clock=device.clock,
        warnings=tuple(warnings),
    )


def _call_between(marks: Iterable[tuple[Mark, Mark]], fn: Callable[[], object]) -> float:
    """Call `fn` between the two marks of each pair; returns the host's time for all calls."""
    begun_s = time.perf_counter()
    for start, end in marks:
        start.record()
        fn()
        end.record()
    return time.perf_counter() - begun_s


def _warnings(
    times_s: list[float], *, warmup: int, host_s: float | None, grown_bytes: int, synchronized: bool
) -> Iterator[str]:
    median_s = statistics.median(times_s)
    if warmup < 1:
        yield "Without warm-up, the first calls include loading kernels and allocating memory."
    if len(times_s) < _MIN_CALLS:
        yield f"{len(times_s)} calls are too few to measure the spread: use at least {_MIN_CALLS}."
    if synchronized:
        yield "The function synchronizes: the GPU's idle time until the next launch is included."
    if grown_bytes > 0:
        yield f"{grown_bytes:,} more bytes are allocated after the run: the function keeps its results."
    if median_s < _MIN_TIME_S and host_s is None:
        yield (f"One call takes {duration(median_s)}, including reading the clock: combine several calls.")
    elif median_s < _MIN_TIME_S:
        yield (
            f"One call takes {duration(median_s)}, about its launch overhead: combine several calls, or use a"
            " CUDA graph."
        )
    elif host_s is not None and host_s >= _HOST_BOUND_RATIO * sum(times_s) and not synchronized:
        yield "The calls are launch-bound: use a CUDA graph."
    if len(times_s) >= _MIN_CALLS_FOR_DRIFT:
        quarter = len(times_s) // 4
        first, last = statistics.median(times_s[:quarter]), statistics.median(times_s[-quarter:])
        if modes := _two_modes(times_s):
            (low_s, low), (high_s, high) = modes
            yield (
                f"The times have two modes: {low} calls take about {duration(low_s)}, {high} about"
                f" {duration(high_s)}. Neither mean nor median describes both: find out what alternates."
            )
        elif abs(first - last) > _MAX_DRIFT_RATIO * median_s:
            yield "The times drift between first and last calls: warm up longer, or check the GPU clocks."
        elif statistics.stdev(times_s) > _MAX_SPREAD_RATIO * statistics.fmean(times_s):
            yield "The times vary by more than 10%: use the median, and check for concurrent work."


def _two_modes(times_s: Sequence[float]) -> tuple[tuple[float, int], tuple[float, int]] | None:
    """Mean and count of the calls on either side of the cut that explains most of the variance (Otsu 1979).

    None if one side has too few of the calls, they are close together, the rest of the variance is large, or
    all calls of one side come before those of the other, which is a drift.
    """
    ordered = sorted(times_s)
    count, total = len(ordered), sum(ordered)
    variance = statistics.pvariance(ordered)
    best, low_s = (0.0, 0), 0.0
    for at, value in enumerate(ordered[:-1], start=1):
        low_s += value
        distance = (total - low_s) / (count - at) - low_s / at
        best = max(best, (at * (count - at) / count**2 * distance**2, at))
    between, at = best
    if min(at, count - at) < _MIN_MODE_RATIO * count or between < _MIN_EXPLAINED_RATIO * variance:
        return None
    low, high = statistics.fmean(ordered[:at]), statistics.fmean(ordered[at:])
    if high - low <= _MIN_MODE_DISTANCE_RATIO * statistics.median(ordered):
        return None
    slow = [time_s >= ordered[at] for time_s in times_s]
    changes = sum(one != other for one, other in pairwise(slow))
    return ((low, at), (high, count - at)) if changes >= _MIN_MODE_CHANGES else None
