"""What one aggregator process takes in: many agents over real gRPC, one process each side.

    python -m benchmarks.aggregator_ingest [--nodes 1000] [--jobs 10] [--seconds 20] [--history] [--json]

Each fake agent sends what an agent of a node with 8 GPUs sends each second: 8 rows of GPU
columns, one of host columns, the health of its collectors, and on one node of each job a
progress line. First as fast as it goes (batches and samples a second until every batch is
acknowledged), then at one batch a second and node (the aggregator's share of a core, with
its rounds of analysis and rules, and its resident memory). With `--history` batches are acknowledged
after their rows are on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.aggregator_process import AggregatorProcess
from benchmarks.fleet_agents import batch, connected, kind_of

SCHEMA = "perfd.bench.ingest/1"


def measure(
    nodes: int = 1000,
    jobs: int = 10,
    seconds: int = 20,
    burst: int = 20,
    *,
    history: bool = False,
    tls: bool = False,
) -> dict[str, Any]:
    """Throughput of a burst, then the cost of one batch a second and node; `tls` is mutual."""
    with (
        tempfile.TemporaryDirectory() as folder,
        AggregatorProcess(Path(folder), history=history, tls=tls) as aggregator,
    ):
        return asyncio.run(_drive(aggregator, nodes, jobs, seconds, burst))


async def _drive(
    aggregator: AggregatorProcess, nodes: int, jobs: int, seconds: int, burst: int
) -> dict[str, Any]:
    async with connected(aggregator, nodes, jobs) as agents:
        batches = {
            kind: [batch(2 + i, jobs, kind, _after_s(2 + i)) for i in range(burst + seconds)]
            for kind in range(-1, jobs)
        }
        before, before_cpu_s, started_s = aggregator.values(), aggregator.cpu_s(), time.perf_counter()
        await asyncio.gather(
            *(agent.send(batches[kind_of(n, jobs)][:burst]) for n, agent in enumerate(agents))
        )
        took_s, burst_cpu_s = time.perf_counter() - started_s, aggregator.cpu_s() - before_cpu_s
        await asyncio.sleep(2)
        after = aggregator.values()

        before_cpu_s, started_s = aggregator.cpu_s(), time.perf_counter()
        late_s = 0.0
        for second in range(seconds):
            await asyncio.gather(
                *(agent.send([batches[kind_of(n, jobs)][burst + second]]) for n, agent in enumerate(agents))
            )
            ahead_s = started_s + second + 1 - time.perf_counter()
            late_s = max(late_s, -ahead_s)
            await asyncio.sleep(max(0.0, ahead_s))
        paced_s, paced_cpu_s = time.perf_counter() - started_s, aggregator.cpu_s() - before_cpu_s
        last = aggregator.values()
    samples = last["perfd_samples_total"] - before["perfd_samples_total"]
    count = last["perfd_batches_total"] - before["perfd_batches_total"]
    rounds = last["perfd_ticks_total"] - after["perfd_ticks_total"]
    return {
        "schema": SCHEMA,
        "nodes": nodes,
        "jobs": jobs,
        "samples_per_batch": samples / count,
        "batch_bytes": len(batches[-1][0]),
        "burst_batches_per_s": nodes * burst / took_s,
        "burst_samples_per_s": nodes * burst / took_s * samples / count,
        "burst_cpu_s_per_batch": burst_cpu_s / (nodes * burst),
        "paced_cpu_ratio": paced_cpu_s / paced_s,
        "paced_late_s": late_s,
        "round_s": (last["perfd_tick_seconds_total"] - after["perfd_tick_seconds_total"]) / max(1.0, rounds),
        "rules_s": (
            last["perfd_rule_evaluation_seconds_total"] - after["perfd_rule_evaluation_seconds_total"]
        )
        / max(1.0, rounds),
        "ingest_s_per_batch": (last["perfd_ingest_seconds_total"] - before["perfd_ingest_seconds_total"])
        / count,
        "resident_bytes": last["process_resident_memory_bytes"],
        "lost_batches": last["perfd_lost_batches_total"],
    }


def _after_s(seconds: int) -> int:
    return time.time_ns() + seconds * 1_000_000_000


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--burst", type=int, default=20, help="batches of each node in the burst")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--tls", action="store_true", help="both sides show a certificate")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.nodes, args.jobs, args.seconds, args.burst, history=args.history, tls=args.tls)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{args.nodes} agents, {result['samples_per_batch']:.0f} values and "
        f"{result['batch_bytes']} bytes a batch\n"
        f"burst: {result['burst_batches_per_s']:,.0f} batches/s, "
        f"{result['burst_samples_per_s']:,.0f} values/s, "
        f"{result['burst_cpu_s_per_batch'] * 1e6:.0f} us of CPU a batch\n"
        f"1 Hz:  {result['paced_cpu_ratio']:.0%} of a core, a round {result['round_s'] * 1e3:.0f} ms "
        f"(rules {result['rules_s'] * 1e3:.0f} ms), {result['resident_bytes'] / 1e6:.0f} MB, "
        f"{result['lost_batches']:.0f} batches lost, at most {result['paced_late_s']:.2f} s behind"
    )


if __name__ == "__main__":
    main()
