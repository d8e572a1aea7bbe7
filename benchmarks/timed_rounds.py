"""`benchmarks/timed_rounds.py FILE PACE aggregator ...` is `perfd aggregator ...` that times its rounds.

Each round adds a line to FILE: its wall time and the CPU time of its thread, in seconds. So does each scrape
to FILE-scrapes. A second of the aggregator's clock lasts PACE seconds.
For `benchmarks.fleet` only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from perfd.aggregator.analysis_loop import AnalysisLoop
from perfd.aggregator.ingest import grpc_server
from perfd.cli import main
from perfd.clock import SystemClock
from perfd.net.http import _Handler


def _timed(run: Callable[..., None], times: TextIO, counts: Callable[..., bool]) -> Callable[..., None]:
    """`run`, timed: each call whose first argument `counts` accepts adds a line to `times`."""

    def timed(first: object, *rest: object) -> None:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        run(first, *rest)
        if counts(first):
            print(time.perf_counter() - wall_s, time.thread_time() - cpu_s, file=times)

    return timed


if __name__ == "__main__":
    pace = float(sys.argv.pop(2))
    path = sys.argv.pop(1)
    rounds, scrapes = (
        Path(name).open("a", buffering=1, encoding="ascii")  # noqa: SIM115  (until the end)
        for name in (path, f"{path}-scrapes")
    )
    AnalysisLoop.run = _timed(AnalysisLoop.run, rounds, lambda _: True)  # type: ignore[method-assign]
    _Handler.do_GET = _timed(  # type: ignore[method-assign]
        _Handler.do_GET, scrapes, lambda handler: handler.path == "/metrics"
    )
    # Otherwise batches, which come at that pace, would be acknowledged more often.
    grpc_server._LOOK_EVERY_S *= pace  # noqa: SLF001
    began_s, began_ns = time.monotonic(), time.time_ns()

    def _monotonic_s(_: SystemClock) -> float:
        return began_s + (time.monotonic() - began_s) / pace

    def _unix_ns(_: SystemClock) -> int:
        return began_ns + round((time.time_ns() - began_ns) / pace)

    SystemClock.monotonic_s = _monotonic_s  # type: ignore[method-assign]
    SystemClock.unix_ns = _unix_ns  # type: ignore[method-assign]
    sys.exit(main())
