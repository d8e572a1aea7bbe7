"""What pauses cost an aggregator on this machine: the same batches and rounds, with pauses and without.

    python -m benchmarks.paused_rounds [--nodes 100] [--seconds 30] [--pause-s 0.95]

Batches are taken and rounds run by a virtual clock, without gRPC: first one second of the agents after the
other, then with a pause after each. An aggregator of few nodes sleeps most of the time, and does all from
cold caches and, on some virtual machines, from memory that was taken away meanwhile. CPU time of one thread
per batch, with its share of a round, in the median second and in the mean.
"""

from __future__ import annotations

import argparse
import time
from unittest.mock import patch

import numpy as np

from benchmarks.fleet_agents import first_batch
from benchmarks.fleet_traffic import Traffic
from perfd.aggregator import aggregator as module
from perfd.aggregator.ingest import Ingest
from perfd.aggregator.ingest.ingest_session import IngestSession
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig
from perfd.model import Hello
from perfd.process_memory import tune_memory
from perfd.wire.convert import encode_message

_SETTLED_S = 160
"""Until windows are full and jobs calm."""
_TOGETHER = 64
"""Batches taken together, as the server does."""


class _Fleet:
    """An aggregator and the agents of its nodes, in one process."""

    def __init__(self, nodes: int) -> None:
        jobs = max(1, nodes // 20)
        self._clock = VirtualClock(1_800_000_000_000_000_000)
        self._traffic = Traffic(nodes=nodes, jobs=jobs)
        intakes: list[Ingest] = []

        def intake(*parts: object) -> Ingest:
            intakes.append(Ingest(*parts))  # type: ignore[arg-type]
            return intakes[-1]

        config = AggregatorConfig(listen="127.0.0.1:0", http_listen=None)
        with patch.object(module, "Ingest", intake):
            self._aggregator = module.Aggregator(config, self._clock, manual=True)
        (self._intake,) = intakes
        self._sequence = 1
        self._sessions: list[IngestSession] = []
        for node in range(nodes):
            hello = Hello(
                agent_id=f"agent-{node}",
                node=f"node{node:05d}",
                perfd_version="benchmark",
                sent_unix_ns=self._clock.unix_ns(),
                first_sequence=1,
            )
            agent, _ = self._intake.hello(hello, node + 1)
            assert agent is not None
            self._sessions.append(IngestSession(self._intake, agent, node + 1, lambda: None))
        self._take([encode_message(first_batch(node, jobs, nodes)) for node in range(nodes)])

    def second_s(self) -> float:
        """CPU time of a second's batches, one of each node, and its round."""
        self._clock.advance(1.0)
        self._sequence += 1
        now_ns = self._clock.unix_ns()
        nodes = range(len(self._sessions))
        batches = [bytes(self._traffic.batch(node, self._sequence, now_ns)) for node in nodes]
        begin_s = time.thread_time()
        self._take(batches)
        self._aggregator.tick()
        return time.thread_time() - begin_s

    def _take(self, batches: list[bytes]) -> None:
        messages = list(zip(self._sessions, batches, strict=True))
        for first in range(0, len(messages), _TOGETHER):
            self._intake.take_together(messages[first : first + _TOGETHER])

    def close(self) -> None:
        taken, sent = self._aggregator.state.counters.batches, self._sequence * len(self._sessions)
        self._aggregator.stop()
        if taken != sent:
            raise SystemExit(f"{taken} of {sent} batches were taken.")


def measure(nodes: int, seconds: int, pause_s: float) -> tuple[np.ndarray, np.ndarray]:
    """CPU time per batch of so many seconds each, in µs: without pauses, and with."""
    fleet = _Fleet(nodes)
    for _ in range(_SETTLED_S):
        fleet.second_s()
    in_a_row = [fleet.second_s() for _ in range(seconds)]
    paused = []
    for _ in range(seconds):
        time.sleep(pause_s)
        paused.append(fleet.second_s())
    fleet.close()
    return np.array(in_a_row) / nodes * 1e6, np.array(paused) / nodes * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=30, help="counted, of each kind")
    parser.add_argument("--pause-s", type=float, default=0.95)
    args = parser.parse_args()
    tune_memory()
    found = measure(args.nodes, args.seconds, args.pause_s)
    for name, times_us in zip(("without pauses", f"{args.pause_s:g} s apart"), found, strict=True):
        mean_us, median_us = times_us.mean(), np.median(times_us)
        print(f"{name}: {mean_us:.0f} us a batch with its share of a round, median {median_us:.0f}")
    print(f"pauses cost {found[1].mean() / found[0].mean():.2f} times as much")
