"""`python -m benchmarks.serving`: what scraping a page of 2,000 lines once a second costs of a core.

The page is of an SGLang server with several data-parallel ranks, most of it histograms that perfd reads. A
process serves it; what is measured is the CPU time of the collector's whole `collect`: request, parsing, sums
over ranks, quantiles of the window, the row.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection

from perfd_collectors.serving import SGLANG
from perfd_collectors.serving.collector import ServingOptions

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.net import HttpServer, Response

_LINES = 2000
_LIMIT_RATIO = 0.005
_LOOKS = 50
_ROUNDS = 9
_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "queue_time_seconds",
)
_GAUGES = ("num_running_reqs", "num_queue_reqs", "token_usage", "num_used_tokens", "gen_throughput")


def page(look: int) -> bytes:
    """A page of `_LINES` lines; its counts rise from one look to the next."""
    lines = [f"# TYPE sglang:{name} histogram" for name in _HISTOGRAMS]
    rank = 0
    while len(lines) < _LINES:
        labels = f'model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",dp_rank="{rank}"'
        bounds = [*(f"{0.001 * 1.3**step:.6g}" for step in range(30)), "+Inf"]
        for name in _HISTOGRAMS:
            lines += [
                f'sglang:{name}_bucket{{{labels},le="{bound}"}} {(look + 1) * index}.0'
                for index, bound in enumerate(bounds)
            ]
            lines += [
                f"sglang:{name}_sum{{{labels}}} {look}.5",
                f"sglang:{name}_count{{{labels}}} {look * 30}.0",
            ]
        lines += [f"sglang:{name}{{{labels}}} 4.0" for name in _GAUGES]
        lines += [f"sglang:other_{index}{{{labels}}} {index}.0" for index in range(40)]
        rank += 1
    return ("\n".join(lines[:_LINES]) + "\n").encode()


def _serve(report: Connection) -> None:
    bodies = [page(look) for look in range(8)]
    count = 0

    def answer(_: object) -> Response:
        nonlocal count
        count += 1
        return Response(body=bodies[min(count // 100, 7)], content_type="text/plain; version=0.0.4")

    server = HttpServer("127.0.0.1:0", {"/metrics": answer})
    report.send(server.address)
    report.recv()
    server.close()


def main() -> int:
    """Measure, and say it beside what perfd allows itself."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    clock = VirtualClock()
    options = ServingOptions(urls=(f"http://{ours.recv()}",), discover=False, timeout_s=30.0)
    collector = SGLANG.create(options, Settings(node="n", job="j", clock=clock))
    looks_s = []
    for round_ in range(_ROUNDS + 1):
        start = time.process_time()
        for _ in range(_LOOKS):
            clock.advance(1.0)
            collector.collect()
        if round_:
            looks_s.append((time.process_time() - start) / _LOOKS)
    collector.close()
    ours.send(None)
    process.join()
    median_s = statistics.median(looks_s)
    print(f"scraping a page of {_LINES} lines ({len(page(0)) // 1024} KiB) once a second:")
    print(f"  {100 * median_s:.2f}% of a core, {100 * min(looks_s):.2f} to {100 * max(looks_s):.2f}%")
    print(f"  ({_ROUNDS} rounds of {_LOOKS} looks; perfd allows itself {100 * _LIMIT_RATIO:g}%)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
