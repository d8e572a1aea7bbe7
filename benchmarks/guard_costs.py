"""Cost of the aggregator's guards per connection and per batch, with and without them in turn.

    python -m benchmarks.guard_costs [--turns 20] [--nodes 100] [--burst 20] [--json]

Three aggregators run side by side: one with mutual TLS, limits on records, and acknowledgment after the
commit; one with all but TLS; one with plain text, no limits, and acknowledgment once a batch is applied.
History is written in all, and none makes rounds of analysis. Each agent opens a connection and keeps it, as
agents do for days; then the aggregators get the same bursts over these connections, in turn. The first turn
is not counted. Then the same for one agent's spool: batches appended and read with and without checksums.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.aggregator_process import AggregatorProcess
from benchmarks.fleet_agents import batch, connected, kind_of
from perfd.agent.spool import Spool

SCHEMA = "perfd.bench.guards/2"
_JOBS = 10
_NO_ROUNDS_S = 86_400.0
_GUARDS = {"with": (True, True), "without_tls": (True, False), "without": (False, False)}
"""By name, whether the aggregator has its guards, and whether it has TLS."""
_SPOOLED = 2000
_SPOOLED_BYTES = 8000


def compare(turns: int, nodes: int, burst: int) -> dict[str, Any]:
    """CPU time per connection and per batch of each, and each turn's ratios to the one without."""
    with ExitStack() as stack:
        aggregators = {}
        for name, (guards, tls) in _GUARDS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            aggregators[name] = stack.enter_context(
                AggregatorProcess(
                    folder,
                    program=("-m", "perfd" if guards else "benchmarks.without_guards"),
                    history=True,
                    tls=tls,
                    round_interval_s=_NO_ROUNDS_S,
                )
            )
        connections, cpu_s, took_s = asyncio.run(_drive(aggregators, turns, nodes, burst))
    spool = {
        checksums: median(_spool_s(checksums=checksums) for _ in range(5)) for checksums in (True, False)
    }
    batches = nodes * burst
    return {
        "schema": SCHEMA,
        "turns": turns,
        "nodes": nodes,
        "connection_cpu_s": connections,
        "batch_cpu_s": {name: median(of) / batches for name, of in cpu_s.items()},
        "batches_per_s": {name: batches / median(of) for name, of in took_s.items()},
        "batch_cpu_ratios": {name: _ratios(of, cpu_s["without"]) for name, of in cpu_s.items()},
        "throughput_ratios": {name: _ratios(took_s["without"], of) for name, of in took_s.items()},
        "spool_s_per_batch_with": spool[True],
        "spool_s_per_batch_without": spool[False],
    }


async def _drive(
    aggregators: Mapping[str, AggregatorProcess], turns: int, nodes: int, burst: int
) -> tuple[dict[str, float], dict[str, list[float]], dict[str, list[float]]]:
    """CPU seconds of a connection, then CPU and wall seconds of each turn's bursts, by aggregator."""
    agents, connections = {}, {}
    cpu_s: dict[str, list[float]] = {name: [] for name in aggregators}
    took_s: dict[str, list[float]] = {name: [] for name in aggregators}
    async with AsyncExitStack() as stack:
        for name, aggregator in aggregators.items():
            before_s = aggregator.cpu_s()
            agents[name] = await stack.enter_async_context(connected(aggregator, nodes, _JOBS, nodes))
            connections[name] = (aggregator.cpu_s() - before_s) / nodes
        for turn in range(turns + 1):
            sequences = range(2 + turn * burst, 2 + (turn + 1) * burst)
            batches = {
                kind: [batch(sequence, _JOBS, kind, time.time_ns()) for sequence in sequences]
                for kind in range(-1, _JOBS)
            }
            # None is always the first.
            for name in list(aggregators)[:: 1 if turn % 2 else -1]:
                before_s, started_s = aggregators[name].cpu_s(), time.perf_counter()
                await asyncio.gather(
                    *(agent.send(batches[kind_of(n, _JOBS)]) for n, agent in enumerate(agents[name]))
                )
                if turn:
                    took_s[name].append(time.perf_counter() - started_s)
                    cpu_s[name].append(aggregators[name].cpu_s() - before_s)
    return connections, cpu_s, took_s


def _ratios(of: list[float], to: list[float]) -> list[float]:
    return sorted(one / other for one, other in zip(of, to, strict=True))


def _spool_s(*, checksums: bool) -> float:
    """CPU time to append, read and acknowledge a batch."""
    payload = bytes(range(256)) * (_SPOOLED_BYTES // 256)
    with ExitStack() as stack:
        if not checksums:
            stack.enter_context(patch("perfd.agent.spool.spool.StoredBatch.checksum", 0))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        spool = stack.enter_context(closing(Spool(Path(folder), max_bytes=1 << 26)))
        started_s = time.process_time()
        for _ in range(_SPOOLED):
            spool.append(lambda _: payload, records=10)
        after = 0
        while read := spool.read_after(after, limit=64):
            after = read[-1].sequence
            spool.acknowledge(after)
        return (time.process_time() - started_s) / _SPOOLED


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--burst", type=int, default=20, help="batches of each node in a turn")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = compare(args.turns, args.nodes, args.burst)
    if args.json:
        print(json.dumps(result))
        return
    for name in _GUARDS:
        cpu, throughput = result["batch_cpu_ratios"][name], result["throughput_ratios"][name]
        print(
            f"{name:>11}: {result['connection_cpu_s'][name] * 1e3:.2f} ms of CPU a connection, "
            f"{result['batch_cpu_s'][name] * 1e6:.0f} us a batch: {median(cpu):.3f} of that without, "
            f"{cpu[len(cpu) // 4]:.3f} to {cpu[-1 - len(cpu) // 4]:.3f} in half of the turns; "
            f"{result['batches_per_s'][name]:,.0f} batches/s, {median(throughput):.3f}"
        )
    with_, without = (result[f"spool_s_per_batch_{which}"] * 1e6 for which in ("with", "without"))
    print(f"an agent's spool: {with_:.0f} us a batch with checksums, {without:.0f} without")


if __name__ == "__main__":
    main()
