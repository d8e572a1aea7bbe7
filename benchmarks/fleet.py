"""What a fleet costs its one aggregator: rounds, the page of series on the wire, memory.

    python -m benchmarks.fleet [--nodes 1000] [--jobs 50] [--seconds 30] [--kept-s 120]
                               [--uplink grpc nats] [--restart-every-s 5] [--skew-s 120]
                               [--nccl 100] [--partition-s 10] [--recorded FILE]
                               [--beside CHECKOUT] [--pace-s 1] [--settled-s 5]
                               [--spread-s 0.95] [--json]

Agents of nodes with 8 GPUs each first send two minutes that they have kept, as after a partition, so
that every window of the analysis is full; then each sends a batch a second over real gRPC, or one with two
seconds every other second where the aggregator asks for that (over NATS they do not listen). The page
is read every 15 s, as Prometheus does, and counted apart. All send at the same instant, as agents do whose
clocks agree; with `--spread-s` evenly within that time. With `--beside` the perfd of another checkout takes
the same, in turn. With `--uplink nats` agents publish to a nats-server on this machine, whose CPU time is not
in that of the aggregator. With `--pace-s N` the seconds of agents and aggregator last N seconds, for
more agents than this machine can drive at once. Rounds are counted `--settled-s` after the burst: beyond 30 s
jobs are calm, whose numbers are made less often and whose agents are asked for fewer batches; they obey once
they have sent 60 s, the kept ones among them. It exits with 1 if not every batch that was sent was taken,
once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.aggregator_process import ROOT, AggregatorProcess
from benchmarks.fleet_agents import (
    ACKNOWLEDGE_EVERY,
    Sender,
    connected,
    published,
)
from benchmarks.fleet_traffic import Traffic, recorded_seconds
from perfd.agent.collection.batch_pace import QUIET_AFTER_S
from tests.support.nats_server import NatsServer

SCHEMA = "perfd.bench.fleet/1"
_KEPT_S = 120
"""As long as the longest window of GPU samples in a live number."""
_SCRAPE_EVERY_S = 15
_SETTLED_S = 5
"""Rounds after the burst that are not counted unless another number is given: they catch up with it."""
_LOOK_EVERY_S = 0.5
_NO_MORE_S = 20.0
"""Without another batch, those that are missing are taken for lost."""
_SECOND_NS = 1_000_000_000
_LIMIT_BYTES = 1 << 30
"""The chart's `aggregator.resources.limits.memory`."""


def measure(
    traffic: Traffic,
    seconds: int,
    checkout: Path,
    uplink: str = "grpc",
    *,
    kept_s: int = _KEPT_S,
    partition_s: int = 0,
    pace_s: float = 1.0,
    settled_s: int = _SETTLED_S,
    spread_s: float = 0.0,
) -> dict[str, Any]:
    """The figures of one aggregator that starts empty; a second of the agents lasts `pace_s`.

    Agents have kept the batches of `kept_s`; half of them cannot send for `partition_s`, in the middle.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        rounds = folder / "rounds"
        program = (str(Path(__file__).with_name("timed_rounds.py")), str(rounds), str(pace_s))
        server = stack.enter_context(NatsServer(folder)) if uplink == "nats" else None
        config: dict[str, Any] = {} if server is None else {"nats": {"servers": [server.address]}}
        config["round_interval_s"] = pace_s
        aggregator = stack.enter_context(
            AggregatorProcess(folder, program=program, checkout=checkout, **config)
        )
        while server is not None and not aggregator.values().get("perfd_nats_reading"):
            time.sleep(0.1)
        away = partition_range(seconds, partition_s)
        drive = _Drive(
            aggregator,
            rounds,
            traffic,
            partitioned=away,
            pace_s=pace_s,
            settled_s=settled_s,
            spread_s=spread_s,
        )
        driven = asyncio.run(drive.run(seconds, kept_s, server))
        peak_bytes = aggregator.peak_bytes()
    return {
        "schema": SCHEMA,
        "uplink": uplink,
        "load_average": os.getloadavg()[0],
        "checkout": str(checkout),
        "nodes": traffic.nodes,
        "jobs": traffic.jobs,
        "pace_s": pace_s,
        **driven,
        "peak_memory_bytes": peak_bytes,
        "memory_limit_ratio": peak_bytes / _LIMIT_BYTES,
    }


def partition_range(seconds: int, partition_s: int) -> range:
    """The counted seconds in which a part of the agents cannot send."""
    first = (seconds - partition_s) // 2
    return range(first, first + partition_s)


class _Drive:
    """Sends the batches of a fleet, and reads what they cost."""

    def __init__(
        self,
        aggregator: AggregatorProcess,
        rounds: Path,
        traffic: Traffic,
        *,
        partitioned: range,
        pace_s: float,
        settled_s: int,
        spread_s: float,
    ) -> None:
        self._pace_s, self._settled_s, self._spread_s = pace_s, settled_s, spread_s
        self._aggregator = aggregator
        self._rounds, self._scrapes = rounds, Path(f"{rounds}-scrapes")
        self._traffic = traffic
        self._partitioned = partitioned
        self._held: dict[int, list[bytes]] = {}
        """By node, what it could not send."""
        self._collected: dict[int, list[tuple[int, int]]] = {}
        """By node, the seconds that are in no batch yet: their numbers and times."""
        self._sequences: dict[int, int] = {}
        """By node, of its newest batch."""
        self._sent = 0
        self._job_restarts = 0

    async def run(self, seconds: int, kept_s: int, server: NatsServer | None) -> dict[str, Any]:
        nodes, jobs = self._traffic.nodes, self._traffic.jobs
        fleet: AbstractAsyncContextManager[Sequence[Sender]] = (
            connected(self._aggregator, nodes, jobs, acknowledge_every=ACKNOWLEDGE_EVERY)
            if server is None
            else published(server.address, nodes, jobs)
        )
        async with fleet as agents:
            self._sent = nodes
            start_ns = time.time_ns() - kept_s * _SECOND_NS
            for first in range(0, kept_s, 10):
                await self._send_several(agents, first, min(kept_s, first + 10), start_ns)
            await asyncio.gather(*(agent.settle() for agent in agents))
            sent_s = time.perf_counter()
            # The stream acknowledges batches before the aggregator reads them.
            if server is not None:
                await asyncio.to_thread(_wait_until_read, self._aggregator)
            caught_up_s = time.perf_counter() - sent_s
            figures = await self._paced(agents, seconds, kept_s)
            await self._send_rest(agents)
            await asyncio.gather(*(agent.settle() for agent in agents))
            taken = await asyncio.to_thread(_wait_taken, self._aggregator, self._sent)
            values = self._aggregator.values()
        return {
            **figures,
            "caught_up_s": caught_up_s,
            "sent_batches": self._sent,
            "taken_batches": taken,
            "repeated_batches": values["perfd_repeated_batches_total"],
            "lost_batches": values["perfd_lost_batches_total"],
            "malformed_messages": values["perfd_malformed_messages_total"],
            "job_restarts": self._job_restarts,
            "unread_messages": values.get("perfd_nats_waiting_messages", 0.0),
        }

    async def _send_several(self, agents: Sequence[Sender], first: int, last: int, start_ns: int) -> None:
        """Batches of some seconds at once."""
        seconds = range(first, last)
        self._sent += len(agents) * len(seconds)
        await asyncio.gather(
            *(
                agent.send([self._traffic.batch(n, 2 + at, start_ns + at * _SECOND_NS) for at in seconds])
                for n, agent in enumerate(agents)
            )
        )

    async def _paced(self, agents: Sequence[Sender], seconds: int, kept_s: int) -> dict[str, Any]:
        """A batch of each agent a second."""
        aggregator = self._aggregator
        # What is made in the meantime is late, and of all agents alike.
        start_ns, before, scraped, pages, late_s, cpu_s = time.time_ns(), 0, 0, [], 0.0, 0.0
        started_s = time.perf_counter()
        settled_s, sent = self._settled_s, 0
        for second in range(settled_s + seconds):
            if second == settled_s:
                sent = self._sent
                before, cpu_s = len(rounds_of(self._rounds)), aggregator.cpu_s()
                scraped = len(rounds_of(self._scrapes))
            sequence, now_ns = kept_s + second + 2, start_ns + second * _SECOND_NS
            restarted = self._traffic.restarts(sequence)
            if restarted is not None:
                self._job_restarts += 1
                await agents[restarted * 7 % len(agents)].restart()
            away = second - settled_s in self._partitioned
            # A node is quiet a minute after it last changed.
            quiet = sequence >= QUIET_AFTER_S
            await asyncio.gather(
                *(
                    self._send(agent, n, sequence, now_ns, away=away, quiet=quiet)
                    for n, agent in enumerate(agents)
                )
            )
            if second % _SCRAPE_EVERY_S == settled_s % _SCRAPE_EVERY_S:
                read_s = time.perf_counter()
                page = await asyncio.to_thread(aggregator.page)
                pages.append((len(page), time.perf_counter() - read_s))
            ahead_s = started_s + (second + 1) * self._pace_s - time.perf_counter()
            late_s = max(late_s, -ahead_s)
            await asyncio.sleep(max(0.0, ahead_s))
        took_s = time.perf_counter() - started_s - settled_s * self._pace_s
        cpu_s = aggregator.cpu_s() - cpu_s
        times, scrapes = rounds_of(self._rounds)[before:], rounds_of(self._scrapes)[scraped:]
        # A round comes with each second, however late this machine makes the batches.
        nodes = len(agents)
        node_s = (cpu_s - times[:, 1].sum() - scrapes[:, 1].sum()) / (nodes * seconds)
        return {
            "rounds": len(times),
            **{f"round_{name}_s": value for name, value in _spread(times[:, 0]).items()},
            **{f"round_cpu_{name}_s": value for name, value in _spread(times[:, 1]).items()},
            "cpu_ratio": cpu_s / took_s,
            "batches_per_node_and_s": (self._sent - sent) / (nodes * seconds),
            "node_second_cpu_us": node_s * 1e6,
            "node_second_and_round_cpu_us": (node_s + times[:, 1].mean() / nodes) * 1e6,
            "scrape_cpu_s": scrapes[:, 1].mean(),
            "scrapes_cpu_us": scrapes[:, 1].mean() / _SCRAPE_EVERY_S / nodes * 1e6,
            "page_bytes": max(size for size, _ in pages),
            "page_s": max(took for _, took in pages),
            "late_s": late_s,
        }

    async def _send(
        self, agent: Sender, node: int, second: int, now_ns: int, *, away: bool, quiet: bool
    ) -> None:
        """A node's batch; every second node keeps it while it is away, and sends all afterwards.

        A `quiet` one sends as seldom as the aggregator asks, at the same seconds as all others.
        """
        collected = self._collected.setdefault(node, [])
        collected.append((second, now_ns))
        if quiet and agent.quiet_s and second % round(agent.quiet_s):
            return
        held = self._hold(node)
        if away and node % 2:
            return
        await asyncio.sleep(self._spread_s * node / self._traffic.nodes)
        self._sent += len(held)
        self._held[node] = []
        await agent.send(held)

    def _hold(self, node: int) -> list[bytes]:
        """Make a batch of what a node collected; returns those that it has not sent."""
        collected, held = self._collected[node], self._held.setdefault(node, [])
        if collected:
            # The first one after those that were kept has the number of its second, as these have.
            sequence = self._sequences[node] = self._sequences.get(node, collected[0][0] - 1) + 1
            held.append(self._traffic.batch_of(node, sequence, tuple(collected)))
            collected.clear()
        return held

    async def _send_rest(self, agents: Sequence[Sender]) -> None:
        """What quiet nodes had not sent when the last second was over."""
        for node, agent in enumerate(agents):
            self._sent += len(self._hold(node))
            await agent.send(self._held.pop(node))


def _wait_until_read(aggregator: AggregatorProcess) -> None:
    while aggregator.values()["perfd_nats_waiting_messages"] > 0:
        time.sleep(_LOOK_EVERY_S)


def _wait_taken(aggregator: AggregatorProcess, sent: int) -> int:
    """How many batches were taken, once these are all, or no more come for a while."""
    taken, since_s = -1, time.monotonic()
    while taken < sent and time.monotonic() - since_s < _NO_MORE_S:
        if (now := int(aggregator.values()["perfd_batches_total"])) > taken:
            taken, since_s = now, time.monotonic()
        time.sleep(_LOOK_EVERY_S)
    return taken


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
    parser.add_argument("--restart-every-s", type=int, default=0, help="a job, and one agent, in turn")
    parser.add_argument("--skew-s", type=float, default=0.0, help="how far clocks are off at most")
    parser.add_argument("--nccl", type=int, default=0, metavar="N", help="operations of each rank and second")
    parser.add_argument("--partition-s", type=int, default=0, help="for which every second node cannot send")
    parser.add_argument("--recorded", type=Path, help="a `records.bin`: what each node sends, of its ranks")
    parser.add_argument("--uplink", nargs="+", choices=("grpc", "nats"), default=["grpc"])
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--pairs", type=int, default=1, help="how often each is measured")
    parser.add_argument("--pace-s", type=float, default=1.0, help="how long a second of the agents lasts")
    parser.add_argument("--settled-s", type=int, default=_SETTLED_S, help="after the burst, not counted")
    parser.add_argument(
        "--spread-s", type=float, default=0.0, help="within which agents send, as if clocks disagreed"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    traffic = Traffic(
        nodes=args.nodes,
        jobs=args.jobs,
        restart_every_s=args.restart_every_s,
        skew_s=args.skew_s,
        nccl_operations=args.nccl,
        recorded=recorded_seconds(args.recorded) if args.recorded else (),
    )
    complete = True
    for _ in range(args.pairs):
        for checkout in (args.beside.resolve(), ROOT) if args.beside else (ROOT,):
            for uplink in args.uplink:
                result = measure(
                    traffic,
                    args.seconds,
                    checkout,
                    uplink,
                    kept_s=args.kept_s,
                    partition_s=args.partition_s,
                    pace_s=args.pace_s,
                    settled_s=args.settled_s,
                    spread_s=args.spread_s,
                )
                complete &= result["sent_batches"] == result["taken_batches"]
                print(json.dumps(result) if args.json else _text(result), flush=True)
    sys.exit(not complete)


def _text(result: dict[str, Any]) -> str:
    wall, cpu = (
        ", ".join(
            f"{name} {result[f'{kind}_{name}_s'] * 1e3:.0f}" for name in ("median", "mean", "p95", "longest")
        )
        for kind in ("round", "round_cpu")
    )
    return (
        f"{result['checkout']}: {result['uplink']}, {result['nodes']} nodes, {result['jobs']} jobs, "
        f"{result['batches_per_node_and_s']:.2f} batches of a node in each second of {result['pace_s']:g} s, "
        f"{result['rounds']} rounds, load {result['load_average']:.1f}\n"
        f"round, ms: {wall}; CPU of its thread: {cpu}\n"
        f"page: {result['page_bytes'] / 1e6:.2f} MB with gzip, in {result['page_s']:.2f} s, "
        f"{result['scrape_cpu_s'] * 1e3:.0f} ms of CPU\n"
        f"CPU per node and second (336 values), us: {result['node_second_cpu_us']:.0f}, "
        f"with its share of a round {result['node_second_and_round_cpu_us']:.0f}, "
        f"plus {result['scrapes_cpu_us']:.0f} for scrapes\n"
        f"{result['sent_batches']} batches sent, {result['taken_batches']} taken, "
        f"{result['repeated_batches']:.0f} repeated, {result['job_restarts']} jobs and agents restarted\n"
        f"{result['cpu_ratio']:.0%} of a core, {result['peak_memory_bytes'] / 1e6:.0f} MB at most "
        f"({result['memory_limit_ratio']:.0%} of the chart's limit), "
        f"{result['lost_batches']:.0f} batches lost, {result['unread_messages']:.0f} unread, "
        f"the burst read {result['caught_up_s']:.1f} s after it was sent, "
        f"at most {result['late_s']:.2f} s behind"
    )


if __name__ == "__main__":
    main()
