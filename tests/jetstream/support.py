"""Agents' uplinks, aggregators with history, and what history has of their batches."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool.spool import Spool
from perfd.agent.uplink.nats_uplink import NatsUplink
from perfd.agent.uplink.outgoing import Timeouts
from perfd.aggregator import Aggregator
from perfd.clock import SystemClock
from perfd.config import (
    AggregatorConfig,
    HistoryConfig,
    NatsListenConfig,
    NatsUplinkConfig,
    RulesConfig,
    UplinkConfig,
)
from perfd.model import JobOrigin, TrainingStep

WAIT_S = 60.0


class Node:
    """A spool, what fills it and an uplink to NATS."""

    def __init__(
        self, folder: Path, address: str, *, node: str = "n0", max_bytes: int = 1 << 30, **nats: Any
    ) -> None:
        self.spool = Spool(folder, max_bytes=max_bytes)
        self.batcher = Batcher(self.spool)
        self.requests: list[Any] = []
        self.job = f"job-{node}"
        self.uplink = NatsUplink(
            UplinkConfig(
                nats=NatsUplinkConfig(servers=[address], **nats), backoff_initial_s=0.1, backoff_max_s=0.5
            ),
            node=node,
            spool=self.spool,
            clock=SystemClock(),
            on_request=self.requests.append,
            job=self.job,
            timeouts=Timeouts(acknowledgement_s=5.0),
        )

    def produce(self, count: int = 1, *origin: JobOrigin) -> int:
        """Make batches, each of a step that is the sequence, and the origin; returns the last."""
        for _ in range(count):
            step = self.spool.last_sequence + 1
            self.batcher.add([*origin, TrainingStep(job=self.job, step=step)])
            self.batcher.flush(time.time_ns())
        self.uplink.notify()
        return self.spool.last_sequence

    def close(self, flush_timeout_s: float = WAIT_S) -> None:
        self.uplink.stop(flush_timeout_s)
        self.spool.close()


@contextlib.contextmanager
def node(folder: Path, address: str, **options: Any) -> Iterator[Node]:
    """A node whose uplink runs."""
    one = Node(folder, address, **options)
    one.uplink.start()
    try:
        yield one
    finally:
        one.close(0.0)


@contextlib.contextmanager
def aggregator(history: Path | None, address: str, **nats: Any) -> Iterator[Aggregator]:
    """An aggregator that reads from NATS."""
    running = Aggregator(
        AggregatorConfig(
            listen="127.0.0.1:0",
            http_listen=None,
            rules=RulesConfig(builtin=False),
            history=HistoryConfig(path=None if history is None else str(history)),
            nats=NatsListenConfig(servers=[address], **{"max_bytes": 64 << 20, **nats}),
        ),
        manual=True,
    )
    running.start()
    try:
        yield running
    finally:
        running.stop()


def stored_steps(history: Path, job: str) -> list[int]:
    """The steps of a job in a history; none while there is no history."""
    if not history.exists():
        return []
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(history, timeout=30)) as database,
    ):
        return [
            step for (step,) in database.execute("SELECT step FROM steps WHERE job = ? ORDER BY step", [job])
        ]
    return []


def until(true: Callable[[], Any], wait_s: float = WAIT_S) -> bool:
    """Whether something becomes true in time."""
    deadline_s = time.monotonic() + wait_s
    while not true():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True
