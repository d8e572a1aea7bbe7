"""What a fleet costs its one aggregator: rounds, the page of series on the wire, memory.

    python -m benchmarks.fleet [--nodes 1000] [--jobs 50] [--seconds 30] [--kept-s 120]
                               [--uplink grpc nats]
                               [--beside CHECKOUT] [--json]

Agents of nodes with 8 GPUs each first send two minutes that they have kept, as after a partition, so
that every window of the analysis is full; then each sends one batch a second over real gRPC, and the
page is read every 15 s, as Prometheus does. With `--beside` the perfd of another checkout takes the
same, in turn. With `--uplink nats` agents publish to a nats-server on this machine, whose CPU time is not
in that of the aggregator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet_agents import (
    ACKNOWLEDGE_EVERY,
    ROOT,
    AggregatorProcess,
    batch,
    connected,
    kind_of,
    published,
)
from tests.support.nats_server import NatsServer

SCHEMA = "perfd.bench.fleet/1"
_KEPT_S = 120
"""As long as the longest window of GPU samples in a live number."""
_SCRAPE_EVERY_S = 15
_SETTLED_S = 5
"""Rounds after the burst that are not counted: they catch up with it."""
_LOOK_EVERY_S = 0.5
_LIMIT_BYTES = 1 << 30
"""The chart's `aggregator.resources.limits.memory`."""


def measure(
    nodes: int, jobs: int, seconds: int, checkout: Path, uplink: str = "grpc", *, kept_s: int = _KEPT_S
) -> dict[str, Any]:
    """The figures of one aggregator that starts empty; agents have kept the batches of `kept_s`."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        rounds = folder / "rounds"
        program = (str(Path(__file__).with_name("timed_rounds.py")), str(rounds))
        server = stack.enter_context(NatsServer(folder)) if uplink == "nats" else None
        config = {} if server is None else {"nats": {"servers": [server.address]}}
        aggregator = stack.enter_context(
            AggregatorProcess(folder, program=program, checkout=checkout, **config)
        )
        while server is not None and not aggregator.values().get("perfd_nats_reading"):
            time.sleep(0.1)
        driven = asyncio.run(_drive(aggregator, rounds, nodes, jobs, seconds, server=server, kept_s=kept_s))
        peak_bytes = aggregator.peak_bytes()
    return {
        "schema": SCHEMA,
        "uplink": uplink,
        "load_average": os.getloadavg()[0],
        "checkout": str(checkout),
        "nodes": nodes,
        "jobs": jobs,
        **driven,
        "peak_memory_bytes": peak_bytes,
        "memory_limit_ratio": peak_bytes / _LIMIT_BYTES,
    }


async def _drive(
    aggregator: AggregatorProcess,
    rounds: Path,
    nodes: int,
    jobs: int,
    seconds: int,
    *,
    server: NatsServer | None,
    kept_s: int,
) -> dict[str, Any]:
    kinds = sorted({kind_of(node, jobs) for node in range(nodes)})
    fleet = (
        connected(aggregator, nodes, jobs, acknowledge_every=ACKNOWLEDGE_EVERY)
        if server is None
        else published(server.address, nodes, jobs)
    )
    async with fleet as agents:
        start_ns = time.time_ns()

        def batches_of(second: int) -> dict[int, bytes]:
            now_ns = start_ns + second * 1_000_000_000
            return {kind: batch(kept_s + second + 2, jobs, kind, now_ns) for kind in kinds}

        for first in range(-kept_s, 0, 10):
            several = [batches_of(second) for second in range(first, min(0, first + 10))]
            await asyncio.gather(
                *(agent.send([one[kind_of(n, jobs)] for one in several]) for n, agent in enumerate(agents))
            )
        await asyncio.gather(*(agent.settle() for agent in agents))
        sent_s = time.perf_counter()
        # The stream acknowledges batches before the aggregator reads them.
        if server is not None:
            await asyncio.to_thread(_wait_until_read, aggregator)
        caught_up_s = time.perf_counter() - sent_s
        # What is made in the meantime is late, and of all agents alike.
        start_ns, before, pages, late_s, cpu_s = time.time_ns(), 0, [], 0.0, 0.0
        started_s = time.perf_counter()
        for second in range(_SETTLED_S + seconds):
            if second == _SETTLED_S:
                before, cpu_s = len(rounds_of(rounds)), aggregator.cpu_s()
            now = batches_of(second)
            await asyncio.gather(*(agent.send([now[kind_of(n, jobs)]]) for n, agent in enumerate(agents)))
            if second % _SCRAPE_EVERY_S == _SETTLED_S:
                read_s = time.perf_counter()
                page = await asyncio.to_thread(aggregator.page)
                pages.append((len(page), time.perf_counter() - read_s))
            ahead_s = started_s + second + 1 - time.perf_counter()
            late_s = max(late_s, -ahead_s)
            await asyncio.sleep(max(0.0, ahead_s))
        took_s = time.perf_counter() - started_s - _SETTLED_S
        cpu_s = aggregator.cpu_s() - cpu_s
        times = rounds_of(rounds)[before:]
        # A round comes each second, however late this machine makes the batches.
        batch_s = (cpu_s - times[:, 1].sum()) / (nodes * seconds)
        values = aggregator.values()
    return {
        "rounds": len(times),
        **{f"round_{name}_s": value for name, value in _spread(times[:, 0]).items()},
        **{f"round_cpu_{name}_s": value for name, value in _spread(times[:, 1]).items()},
        "cpu_ratio": cpu_s / took_s,
        "batch_cpu_us": batch_s * 1e6,
        "batch_and_round_cpu_us": (batch_s + times[:, 1].mean() / nodes) * 1e6,
        "page_bytes": max(size for size, _ in pages),
        "page_s": max(took for _, took in pages),
        "late_s": late_s,
        "caught_up_s": caught_up_s,
        "lost_batches": values["perfd_lost_batches_total"],
        "unread_messages": values.get("perfd_nats_waiting_messages", 0.0),
    }


def _wait_until_read(aggregator: AggregatorProcess) -> None:
    while aggregator.values()["perfd_nats_waiting_messages"] > 0:
        time.sleep(_LOOK_EVERY_S)


def rounds_of(path: Path) -> np.ndarray:
    """Wall and CPU time of each round that `timed_rounds.py` wrote so far, in seconds."""
    lines = path.read_text(encoding="ascii").splitlines(keepends=True)
    return np.array([[float(part) for part in line.split()] for line in lines if line.endswith("\n")])


def _spread(values: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "p95": float(np.percentile(values, 95)),
        "longest": float(values.max()),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--kept-s", type=int, default=_KEPT_S, help="what agents send at first")
    parser.add_argument("--uplink", nargs="+", choices=("grpc", "nats"), default=["grpc"])
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--pairs", type=int, default=1, help="how often each is measured")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for _ in range(args.pairs):
        for checkout in (args.beside.resolve(), ROOT) if args.beside else (ROOT,):
            for uplink in args.uplink:
                result = measure(args.nodes, args.jobs, args.seconds, checkout, uplink, kept_s=args.kept_s)
                print(json.dumps(result) if args.json else _text(result), flush=True)


def _text(result: dict[str, Any]) -> str:
    wall, cpu = (
        ", ".join(
            f"{name} {result[f'{kind}_{name}_s'] * 1e3:.0f}" for name in ("median", "mean", "p95", "longest")
        )
        for kind in ("round", "round_cpu")
    )
    return (
        f"{result['checkout']}: {result['uplink']}, {result['nodes']} nodes, {result['jobs']} jobs, "
        f"{result['rounds']} rounds, load {result['load_average']:.1f}\n"
        f"round, ms: {wall}; CPU of its thread: {cpu}\n"
        f"page: {result['page_bytes'] / 1e6:.2f} MB with gzip, in {result['page_s']:.2f} s\n"
        f"CPU per batch, us: {result['batch_cpu_us']:.0f}, with its share of a round "
        f"{result['batch_and_round_cpu_us']:.0f}\n"
        f"{result['cpu_ratio']:.0%} of a core, {result['peak_memory_bytes'] / 1e6:.0f} MB at most "
        f"({result['memory_limit_ratio']:.0%} of the chart's limit), "
        f"{result['lost_batches']:.0f} batches lost, {result['unread_messages']:.0f} unread, "
        f"the burst read {result['caught_up_s']:.1f} s after it was sent, "
        f"at most {result['late_s']:.2f} s behind"
    )


if __name__ == "__main__":
    main()
