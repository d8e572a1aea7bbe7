"""Histories to write to and read from."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from aggregator.support import START_S, fleet, source, step

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool import Spool
from perfd.agent.uplink import GrpcUplink
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.history.history_rows import agent_row, job_rows, rows
from perfd.aggregator.history.postgres import PostgresDatabase
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.history.startup_recovery import restore
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AgentState, AggregatorState
from perfd.clock import SystemClock
from perfd.config import HistoryConfig, UplinkConfig
from perfd.model import TrainingStep
from tests.support.postgres_server import USER, PostgresCluster

DAY_S = 86_400.0


class Location(Protocol):
    """Where a history can be."""

    config: HistoryConfig
    as_newer: str
    """SQL after which a newer perfd seems to have written it."""

    def store(self, **options: Any) -> HistoryStore:
        """Open it, without waiting for another aggregator."""

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Run a statement beside perfd."""

    def renew(self) -> None:
        """Begin with an empty one elsewhere."""

    def restored(self, *, after_s: float = 60.0, now_s: float = 100.0) -> AggregatorState:
        """What a start knows so long after `START_S`."""


class _Restoring:
    def restored(self, *, after_s: float = 60.0, now_s: float = 100.0) -> AggregatorState:
        state = AggregatorState.empty(Limits())
        history = self.store()  # type: ignore[attr-defined]
        restore(state, history, now_unix_s=START_S + after_s, now_s=now_s, forgotten_after_s=3600.0)
        history.close()
        return state


class SqliteLocation(_Restoring):
    """A file."""

    as_newer = "PRAGMA user_version = 99"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.renew()

    def renew(self) -> None:
        self.path = self._folder / secrets.token_hex(4) / "history.sqlite"
        self.config = HistoryConfig(path=str(self.path))

    def store(self, **options: Any) -> HistoryStore:
        return HistoryStore(SqliteDatabase(self.path), **options)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(query).fetchall()


class PostgresLocation(_Restoring):
    """A database of a server that runs."""

    as_newer = "UPDATE alembic_version SET version_num = '9999'"

    def __init__(self, cluster: PostgresCluster) -> None:
        self.cluster = cluster
        self.renew()

    def renew(self) -> None:
        self.database = f"history_{secrets.token_hex(4)}"
        self.cluster.sql(f"CREATE DATABASE {self.database} OWNER {USER}")
        self.config = HistoryConfig(url=self.cluster.url_of(self.database))

    def store(self, **options: Any) -> HistoryStore:
        return HistoryStore(PostgresDatabase(self.config, start_wait_s=0.0), **options)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        return self.cluster.sql(query, database=self.database)


class Node:
    """A spool, what fills it and an uplink by gRPC, from the first line on; `close` ends it."""

    def __init__(self, folder: Path, address: str, *, node: str = "n0") -> None:
        self.spool = Spool(folder / f"spool-{node}", max_bytes=1 << 30)
        self.batcher = Batcher(self.spool)
        self.job = f"job-{node}"
        self.uplink = GrpcUplink(
            UplinkConfig(address=address, backoff_initial_s=0.05, backoff_max_s=0.5),
            node=node,
            spool=self.spool,
            clock=SystemClock(),
            on_request=lambda _: None,
        )
        self.uplink.start()

    def produce(self, count: int = 1) -> int:
        """Make batches of one step each, the step being the sequence; returns the last."""
        for _ in range(count):
            self.batcher.add([TrainingStep(job=self.job, step=self.spool.last_sequence + 1)])
            self.batcher.flush(time.time_ns())
        self.uplink.notify()
        return self.spool.last_sequence

    def close(self) -> None:
        """End without waiting for acknowledgments."""
        self.uplink.stop(0.0)
        self.spool.close()


def write(history, *statements):
    """Write and wait until it is done, well or not."""
    done = threading.Event()
    history.submit(list(statements), done.set)
    assert done.wait(20)


def keep(history, made, *records, now_s=0.0, node="n0", agent="a"):
    """Apply records and keep what has to be kept."""
    durable = made.apply(records, source(now_s=now_s, node=node, agent=agent))
    names = {(item.job, item.attempt) for item in durable if item.job}
    statements = [row for name, attempt in names for row in job_rows(name, attempt, START_S, START_S + now_s)]
    statements += [row for item in durable for row in rows(item, START_S + now_s)]
    write(history, *statements, agent_row(AgentState(agent_id=agent, node=node), 7, START_S + now_s))


def step_rows(number, **fields):
    """What a progress line writes, and its job."""
    durable = fleet().apply([step(number, **fields)], source())
    return [*job_rows("llm", 1, START_S, START_S), *(row for item in durable for row in rows(item, START_S))]
