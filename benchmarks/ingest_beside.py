"""CPU per value of servers that take the same samples at the same time: perfd, Prometheus, VictoriaMetrics.

    python -m benchmarks.ingest_beside [--nodes 100] [--jobs 5] [--seconds 30] [--warm-s 10] [--json]

Each second, each node sends its 336 values (eight GPUs and the node's own) to all three: a batch over gRPC to
an aggregator, and a remote-write request to each of the others. Counted is the CPU time of their processes
after the first seconds, in which series are created. An aggregator also analyzes the jobs and evaluates its
rules; the CPU time of these rounds is shown apart. Needs `prometheus` and `victoria-metrics`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cramjam
import numpy as np

from benchmarks.aggregator_process import AggregatorProcess
from benchmarks.fleet import rounds_of
from benchmarks.fleet_agents import batch, connected, kind_of
from perfd.exporters.remote_write import FrameEncoder
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Batch, SampleTable, Scope
from perfd.wire.agent_messages import decode_agent_message
from tests.support.services import Service, prometheus, victoria_metrics

SCHEMA = "perfd.bench.ingest_beside/1"
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_SERVERS: dict[str, tuple[Callable[[Path], Service], str]] = {
    "Prometheus": (
        lambda folder: prometheus(folder, "global: {}\n"),
        "prometheus_tsdb_head_samples_appended_total",
    ),
    "VictoriaMetrics": (victoria_metrics, 'vm_rows_inserted_total{type="promremotewrite"}'),
}


def measure(nodes: int, jobs: int, seconds: int, warm_s: int) -> dict[str, Any]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        rounds = folder / "rounds"
        program = (str(Path(__file__).with_name("timed_rounds.py")), str(rounds), "1")
        aggregator = stack.enter_context(AggregatorProcess(folder, program=program, history=True))
        servers = {called: stack.enter_context(make(folder)) for called, (make, _) in _SERVERS.items()}
        return asyncio.run(
            _drive(aggregator, rounds, servers, nodes=nodes, jobs=jobs, seconds=seconds, warm_s=warm_s)
        )


async def _drive(
    aggregator: AggregatorProcess,
    rounds: Path,
    servers: dict[str, Service],
    *,
    nodes: int,
    jobs: int,
    seconds: int,
    warm_s: int,
) -> dict[str, Any]:
    kinds = sorted({kind_of(node, jobs) for node in range(nodes)})
    writers = {called: _Writer(server, nodes) for called, server in servers.items()}
    cpu_s: dict[str, float] = {}
    round_s = 0.0
    started_s = time.perf_counter()
    async with connected(aggregator, nodes, jobs) as agents:
        for second in range(warm_s + seconds):
            now_ns = time.time_ns()
            encoded = {kind: batch(second + 2, jobs, kind, now_ns) for kind in kinds}
            if second == warm_s:
                cpu_s = {"perfd": aggregator.cpu_s(), **{n: _cpu_s(one) for n, one in servers.items()}}
                round_s = float(rounds_of(rounds)[:, 1].sum())
                counted = {n: _counted(one, _SERVERS[n][1]) for n, one in servers.items()}
            await asyncio.gather(*(agent.send([encoded[kind_of(n, jobs)]]) for n, agent in enumerate(agents)))
            values = _values(encoded[kinds[-1]])
            for writer in writers.values():
                await asyncio.to_thread(writer.send, values, now_ns)
            await asyncio.sleep(max(0.0, started_s + second + 1 - time.perf_counter()))
        cpu_s["perfd"] = aggregator.cpu_s() - cpu_s["perfd"]
        for called, server in servers.items():
            cpu_s[called] = _cpu_s(server) - cpu_s[called]
    round_s = float(rounds_of(rounds)[:, 1].sum()) - round_s
    sent = len(values) * nodes * seconds
    return {
        "schema": SCHEMA,
        "nodes": nodes,
        "jobs": jobs,
        "values_per_batch": len(values),
        "values": sent,
        "load_average": os.getloadavg()[0],
        "stored": {
            called: _counted(server, _SERVERS[called][1]) - counted[called]
            for called, server in servers.items()
        },
        "cpu_us_per_value": {called: spent / sent * 1e6 for called, spent in cpu_s.items()},
        "perfd_without_rounds_us_per_value": (cpu_s["perfd"] - round_s) / sent * 1e6,
    }


class _Writer:
    """Sends one remote-write request per node, over one connection."""

    def __init__(self, server: Service, nodes: int) -> None:
        url = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        self._encoders = [FrameEncoder({"node": f"node{node:05d}"}, 5_000) for node in range(nodes)]
        self._keys: list[SeriesKey] = []

    def send(self, values: dict[SeriesKey, float], now_ns: int) -> None:
        # The same object each time, whose labels are encoded once.
        self._keys = self._keys or list(values)
        frame = SeriesFrame(now_ns / 1e9, self._keys, np.array(list(values.values())))
        for encoder in self._encoders:
            for body in encoder.encode({"node": frame}):
                data = bytes(cramjam.snappy.compress_raw(body.data))
                self._connection.request("POST", "/api/v1/write", data, _HEADERS)
                answer = self._connection.getresponse()
                answer.read()
                if answer.status >= 300:
                    raise OSError(f"The server answered {answer.status}.")


def _values(encoded: bytes) -> dict[SeriesKey, float]:
    """The values of an encoded batch, as series."""
    message = decode_agent_message(encoded)
    assert isinstance(message, Batch)
    return dict(_series(message))


def _series(message: Batch) -> Iterator[tuple[SeriesKey, float]]:
    for table in message.records:
        if isinstance(table, SampleTable):
            for name, column in table.columns.items():
                for entity, value in zip(table.entities, column, strict=True):
                    labels = {"gpu": entity} if table.scope is Scope.GPU else {}
                    yield SeriesKey.of(f"perfd_{name}", labels), float(value)


def _cpu_s(server: Service) -> float:
    """CPU time that a server has used, by its own count."""
    return _counted(server, "process_cpu_seconds_total")


def _counted(server: Service, name: str) -> float:
    lines = [line for line in server.text("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--warm-s", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.nodes, args.jobs, args.seconds, args.warm_s)
    print(json.dumps(result) if args.json else _text(result))


def _text(result: dict[str, Any]) -> str:
    each = ", ".join(f"{called} {us:.2f}" for called, us in result["cpu_us_per_value"].items())
    stored = ", ".join(f"{called} {count:,.0f}" for called, count in result["stored"].items())
    return (
        f"{result['values']:,} values of {result['nodes']} nodes in batches of {result['values_per_batch']}, "
        f"load {result['load_average']:.1f}\n"
        f"CPU per value, us: {each}; perfd without its rounds "
        f"{result['perfd_without_rounds_us_per_value']:.2f}\nstored: {stored}"
    )


if __name__ == "__main__":
    main()
