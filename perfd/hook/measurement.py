"""Times a function the way it should be done, and doubts numbers that deserve it."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from perfd.hook.marks import HostMark, Mark, cuda_of_torch, event_of, seconds


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
_NOISY = 0.1
_DRIFT = 0.1
_HOST_BOUND = 0.9


def benchmark(
    fn: Callable[[], object],
    *,
    iterations: int = 100,
    warmup: int = 10,
    new_mark: Callable[[], Mark] | None = None,
    synchronise: Callable[[], None] | None = None,
    allocated_bytes: Callable[[], int] | None = None,
) -> Measurement:
    """Time `fn` on the current CUDA stream, or by the host's clock without a GPU.

    It is called `warmup` times first; the marks are made before the first timed call; and there is one
    synchronisation, at the end. The last three arguments replace torch, for tests.
    """
    if iterations < 1 or warmup < 0:
        raise ValueError("benchmark needs at least one iteration, and no negative warm-up.")
    cuda = cuda_of_torch()
    make: Callable[[], Mark] = new_mark or (event_of(cuda) if cuda else HostMark)
    wait = synchronise or (cuda.synchronize if cuda else _nothing)
    memory = allocated_bytes or (cuda.memory_allocated if cuda else int)
    for _ in range(warmup):
        fn()
    synchronised = _synchronises(fn, cuda) if cuda else False
    marks = [(make(), make()) for _ in range(iterations)]
    wait()
    before_bytes = memory()
    begun_s = time.perf_counter()
    for start, end in marks:
        start.record()
        fn()
        end.record()
    host_s = time.perf_counter() - begun_s
    wait()
    grown_bytes = memory() - before_bytes
    times_s = [seconds(start, end) for start, end in marks]
    by_gpu = cuda is not None or new_mark is not None
    return Measurement(
        iterations=iterations,
        mean_s=statistics.fmean(times_s),
        median_s=statistics.median(times_s),
        stdev_s=statistics.stdev(times_s) if iterations > 1 else 0.0,
        min_s=min(times_s),
        max_s=max(times_s),
        clock="cuda" if by_gpu else "host",
        warnings=tuple(
            _doubts(
                times_s,
                host_s=host_s if by_gpu else None,
                grown_bytes=grown_bytes,
                synchronised=synchronised,
            )
        ),
    )


def _doubts(
    times_s: list[float], *, host_s: float | None, grown_bytes: int, synchronised: bool
) -> Iterator[str]:
    median_s = statistics.median(times_s)
    if synchronised:
        yield "The function synchronises inside, so that the GPU idles until the host is back: that is timed."
    if grown_bytes > 0:
        yield f"{grown_bytes} bytes more are allocated after the run: the function keeps what it makes."
    if median_s < _LEAST_S:
        yield (
            f"One call takes {1e6 * median_s:.1f} us, which is about launching it: put several calls into"
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
            yield "The times scatter by more than 10 %: use the median, and look for other work beside it."


def _synchronises(fn: Callable[[], object], cuda: Any) -> bool:  # noqa: ANN401  (a module)
    """Whether a call makes the host wait for the GPU, by torch's own watch and by counting calls."""
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


def _nothing() -> None:
    pass
