"""What the lists of thousands of running jobs cost: before the first round, while rounds run, and after.

    python -m benchmarks.many_jobs [--jobs 5000] [--steps 100] [--requests 5] [--json]

Nodes with 50 jobs each and 8 GPUs send over gRPC; rounds run once a second, back to back if they take longer,
and a second passes between requests. Of each request: seconds until its answer was read, as median and range.
`first_analysis` lasts until no job is "not analyzed yet"; `news` are the rounds after every job sent another
step. Aggregator, agents, requests and the browser share the machine and, but for the browser, the process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perfd.aggregator import Aggregator
from perfd.config import AggregatorConfig
from perfd.model import GpuColumn, SampleTable, Scope, TrainingStep
from tests.support.chromium import chromium
from tests.support.fake_agent import FakeAgent

SCHEMA = "perfd.bench.many_jobs/1"
_JOBS_PER_NODE, _GPUS = 50, 8
_PATHS = {
    "fleet_page": "fleet?limit=100&trend=1",
    "jobs_page": "jobs?limit=100",
    "jobs_page_short": "jobs?limit=100&short=1",
    "all_jobs_short": "jobs?short=1",
}
_SHOWN = "performance.getEntriesByName('shown')"


def measure(jobs: int, steps: int, requests: int) -> dict[str, Any]:
    """All figures; times in seconds."""
    running = Aggregator(
        AggregatorConfig(listen="127.0.0.1:0", http_listen="127.0.0.1:0", max_jobs=jobs), manual=True
    )
    running.start()
    try:
        _send(running, jobs, 1, range(1, steps + 1))
        api = f"http://{running.http_address}/api/v1/"
        answer: dict[str, Any] = {"schema": SCHEMA, "jobs": jobs, "steps": steps, "requests": requests}
        answer["before_first_round"] = _asked(api, requests)
        with _rounds(running) as rounds:
            began_s = time.perf_counter()
            during: dict[str, list[float]] = {name: [] for name in _PATHS}
            new = jobs
            while new:
                for name in ("fleet_page", "jobs_page_short"):
                    during[name].append(_timed(api + _PATHS[name])[0])
                _, document = _timed(f"{api}fleet?cause=not%20analyzed%20yet&limit=1")
                new = document["page"]["matched"]
                # As a page that is open: requests back to back would take the rounds' time.
                time.sleep(1.0)
            answer["first_analysis"] = {
                "seconds": time.perf_counter() - began_s,
                "rounds_s": _spread(rounds),
                **{name: _spread(times) for name, times in during.items() if times},
            }
            rounds.clear()
            _send(running, jobs, 2, range(steps + 1, steps + 2))
            answer["news"] = {**_asked(api, requests), "rounds_s": _spread(rounds)}
            rounds.clear()
            with chromium() as browser:
                tab, shown = browser.tab(), []
                for _ in range(requests):
                    tab.open(f"http://{running.http_address}/", f"{_SHOWN}.length")
                    shown.append(tab.run(f"{_SHOWN}[0].startTime") / 1000)
            answer["page_shown_s"] = _spread(shown)
    finally:
        running.stop()
    return answer


def _send(running: Aggregator, jobs: int, batch: int, steps: range) -> None:
    now_s = time.time()
    for first in range(0, jobs, _JOBS_PER_NODE):
        names = [f"job-{number}" for number in range(first, min(jobs, first + _JOBS_PER_NODE))]
        node = f"node{first // _JOBS_PER_NODE}"
        lines = [
            TrainingStep(
                job=name,
                step=step,
                time_unix_ns=round((now_s - (steps.stop - step)) * 1e9),
                step_time_s=1.0 + 0.01 * (step % 7),
                tokens_per_s=1e5,
            )
            for name in names
            for step in steps
        ]
        gpus = SampleTable(
            scope=Scope.GPU,
            times_unix_ns=[round(now_s * 1e9)] * _GPUS,
            entities=[str(gpu) for gpu in range(_GPUS)],
            columns={GpuColumn.POWER.value: [600.0] * _GPUS},
        )
        with FakeAgent(running.grpc_address, node=node, agent_id=node) as agent:
            agent.hello(sent_unix_ns=round(now_s * 1e9), first_sequence=batch)
            agent.send(*lines, gpus, sequence=batch, sent_unix_ns=round(now_s * 1e9))


@contextmanager
def _rounds(running: Aggregator) -> Iterator[list[float]]:
    """Rounds in a thread; how long each took, in seconds."""
    took: list[float] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            began_s = time.perf_counter()
            running.tick()
            took.append(time.perf_counter() - began_s)
            stop.wait(max(0.0, 1.0 - took[-1]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


def _asked(api: str, requests: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in _PATHS}
    for _ in range(requests):
        for name, path in _PATHS.items():
            times[name].append(_timed(api + path)[0])
            time.sleep(1.0)
    return {name: _spread(of) for name, of in times.items()}


def _timed(url: str) -> tuple[float, dict[str, Any]]:
    began_s = time.perf_counter()
    with urllib.request.urlopen(url, timeout=600) as answer:
        body = answer.read()
    return time.perf_counter() - began_s, json.loads(body)


def _spread(values: list[float]) -> dict[str, float | int]:
    if not (found := list(values)):
        return {"count": 0}
    return {
        "count": len(found),
        "median": round(statistics.median(found), 3),
        "min": round(min(found), 3),
        "max": round(max(found), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measure(args.jobs, args.steps, args.requests), indent=None if args.json else 1))


if __name__ == "__main__":
    main()
