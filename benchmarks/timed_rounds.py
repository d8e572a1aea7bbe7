"""`benchmarks/timed_rounds.py FILE PACE aggregator ...` is `perfd aggregator ...` that times its rounds.

Each round adds a line to the file: its wall time and the CPU time of its thread, in seconds. A second of the
aggregator's clock lasts PACE seconds.
For `benchmarks.fleet` only.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from perfd.aggregator.analysis_loop import AnalysisLoop
from perfd.aggregator.ingest import grpc_server
from perfd.cli import main
from perfd.clock import SystemClock

if __name__ == "__main__":
    run = AnalysisLoop.run
    pace = float(sys.argv.pop(2))
    rounds = Path(sys.argv.pop(1)).open("a", buffering=1, encoding="ascii")  # noqa: SIM115  (until the end)

    def _timed(loop: AnalysisLoop, now_unix_s: float) -> None:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        run(loop, now_unix_s)
        print(time.perf_counter() - wall_s, time.thread_time() - cpu_s, file=rounds)

    AnalysisLoop.run = _timed  # type: ignore[method-assign]
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
