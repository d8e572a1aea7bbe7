"""How fast history is committed: the same rows into SQLite and into a PostgreSQL server, in turn.

    python -m benchmarks.history_commits [--rounds 5] [--seconds 5] [--json]

Each round writes to both for so long: batches as an aggregator stores them (a step of a job and the sequence
of its agent), from 64 agents of 8 jobs, each of which sends its next batch when the last one is acknowledged.
Both wait for the disk at each commit, and both have their files on the same one. CPU is that of this process;
the server's own is beside it. Needs PostgreSQL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from perfd.aggregator.history import HistoryStore, agent_row, configured_history, job_rows, rows
from perfd.aggregator.state import AgentState, Durable
from perfd.config import HistoryConfig
from perfd.model import TrainingStep
from tests.support.postgres_server import PostgresCluster

SCHEMA = "perfd.bench.history_commits/1"
_AGENTS, _JOBS = 64, 8


class Load:
    """Agents that each have one batch on its way."""

    def __init__(self, history: HistoryStore, first: int) -> None:
        self._history = history
        self._next = [first] * _AGENTS
        self._stop = threading.Event()
        self._open = threading.Semaphore(0)
        self.latencies_s: list[float] = []

    def run(self, seconds: float) -> int:
        """Send for so long; returns how many batches were acknowledged."""
        for agent in range(_AGENTS):
            self._send(agent)
        time.sleep(seconds)
        self._stop.set()
        for _ in range(_AGENTS):
            self._open.acquire()
        return len(self.latencies_s)

    def _send(self, agent: int) -> None:
        number, name, now_s = self._next[agent], f"agent{agent}", time.time()
        self._next[agent] += 1
        job = f"job{agent % _JOBS}"
        line = TrainingStep(job=job, step=number * _AGENTS + agent, step_time_s=1.0, losses={"lm loss": 2.5})
        durable = Durable(node=name, job=job, attempt=1, record=line, time_unix_s=now_s)
        statements = [*job_rows(job, 1, None, now_s), *rows(durable, now_s)]
        statements.append(agent_row(AgentState(agent_id=name, node=name), number, now_s))
        started_s = time.perf_counter()

        def stored() -> None:
            self.latencies_s.append(time.perf_counter() - started_s)
            if self._stop.is_set():
                self._open.release()
            else:
                self._send(agent)

        assert self._history.submit(statements, stored)


def measure(
    history: HistoryStore, seconds: float, first: int, server: psutil.Process | None
) -> dict[str, float]:
    """One load on one history."""
    load, before_s, started_s = Load(history, first), time.process_time(), time.perf_counter()
    of_server_s = cpu_s(server)
    batches = load.run(seconds)
    passed_s = time.perf_counter() - started_s
    return {
        "batches_per_s": batches / passed_s,
        "commit_s": statistics.median(load.latencies_s),
        "commit_p99_s": statistics.quantiles(load.latencies_s, n=100)[98],
        "cpu_us_per_batch": (time.process_time() - before_s) / batches * 1e6,
        "server_cpu_us_per_batch": (cpu_s(server) - of_server_s) / batches * 1e6,
    }


def cpu_s(process: psutil.Process | None) -> float:
    """What a server and its processes have used."""
    if process is None:
        return 0.0
    used = 0.0
    for one in [process, *process.children()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            used += times.user + times.system
    return used


@contextlib.contextmanager
def histories(folder: Path) -> Iterator[dict[str, tuple[HistoryStore, psutil.Process | None]]]:
    """Both, open."""
    with PostgresCluster() as server, contextlib.ExitStack() as stack:
        opened: dict[str, tuple[HistoryStore, psutil.Process | None]] = {}
        for name, config in (
            ("SQLite", HistoryConfig(path=str(folder / "history.sqlite"))),
            ("PostgreSQL", HistoryConfig(url=server.url)),
        ):
            history = configured_history(config)
            assert history is not None
            stack.callback(history.close)
            opened[name] = (history, None if config.url is None else psutil.Process(server.processes()[0]))
        yield opened


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"SQLite": [], "PostgreSQL": []}
    with tempfile.TemporaryDirectory() as folder, histories(Path(folder)) as opened:
        for number in range(args.rounds):
            for name, (history, server) in opened.items():
                found[name].append(measure(history, args.seconds, 1 + number * 1_000_000, server))
    result: dict[str, Any] = {
        name: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for name, rounds in found.items()
    }
    if args.json:
        print(json.dumps({"schema": SCHEMA, "cores": os.cpu_count(), **result}))
        return
    for name, numbers in result.items():
        spread = sorted(one["batches_per_s"] for one in found[name])
        print(
            f"{name}: {numbers['batches_per_s']:,.0f} batches/s ({spread[0]:,.0f} to {spread[-1]:,.0f}), "
            f"commit {numbers['commit_s'] * 1e3:.1f} ms, 99%: {numbers['commit_p99_s'] * 1e3:.1f} ms, "
            f"{numbers['cpu_us_per_batch']:.0f} us of CPU a batch, the server's "
            f"{numbers['server_cpu_us_per_batch']:.0f} us"
        )


if __name__ == "__main__":
    main()
