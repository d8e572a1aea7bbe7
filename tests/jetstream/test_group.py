"""A group of aggregators on real servers: jobs are shared, taken over, and never stored by two."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jetstream.support import Node

from tests.support.group_members import PARTITIONS, Member, seconds_until
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresCluster

pytestmark = pytest.mark.system
KILLS = int(os.environ.get("TEST_KILLS", "1"))
NODES = 4
RULES = """
groups:
  - name: test
    rules:
      - alert: Started
        expr: perfd_step >= 2
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as running:
        yield running


@contextlib.contextmanager
def producing(folder: Path, server: NatsServer) -> Iterator[list[Node]]:
    """Nodes with one job each, which send a step every 0.1 s until the context ends."""
    nodes = [
        Node(folder / f"n{n}", server.address, node=f"n{n}", partitions=PARTITIONS) for n in range(NODES)
    ]
    over = threading.Event()

    def produce() -> None:
        while not over.wait(0.1):
            for node in nodes:
                node.produce()

    thread = threading.Thread(target=produce)
    for node in nodes:
        node.uplink.start()
    thread.start()
    try:
        yield nodes
    finally:
        over.set()
        thread.join()
        for node in nodes:
            node.close(0.0)


def config(folder: Path, **history: Any) -> dict[str, Any]:
    (folder / "rules.yaml").write_text(RULES)
    return {"history": history, "rules": {"builtin": False, "files": [str(folder / "rules.yaml")]}}


def shared(members: Sequence[Member]) -> bool:
    """Whether each member holds partitions and all agree."""
    found = [member.holders() for member in members]
    return None not in found[0] and len(set(found[0])) == len(members) and found.count(found[0]) == len(found)


def moves_on(member: Member, nodes: Sequence[Node]) -> float:
    """Seconds until a member answers for all jobs with steps sent from now on."""
    wanted = {node.job: node.spool.last_sequence + 1 for node in nodes}
    return seconds_until(lambda: all(member.newest_step(job) >= step for job, step in wanted.items()))


def started_alerts(member: Member) -> dict[str, list[float]]:
    """Times at which each job's alert fired."""
    fired: dict[str, list[float]] = {}
    for alert in member.get("/api/v1/alerts")["alerts"]:
        fired.setdefault(alert["job"], []).append(alert["fired_at_unix_s"])
    return fired


def rows(folder: Path, query: str, name: str = "history") -> list[tuple[Any, ...]]:
    """Rows from the SQLite files of all partitions; a partition that was never opened has none."""
    found: list[tuple[Any, ...]] = []
    for number in range(PARTITIONS):
        with contextlib.closing(sqlite3.connect(folder / f"{name}-{number}.sqlite", timeout=30)) as database:
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone():
                found += database.execute(query).fetchall()
    return found


def test_jobs_of_a_killed_aggregator_are_answered_by_another_and_sent_is_stored(
    tmp_path: Path, server: NatsServer
) -> None:
    chance = random.Random(20)
    settings = config(tmp_path, path=str(tmp_path / "history.sqlite"))
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(tmp_path, [server.address], name, **settings)) for name in "ab"]
        seconds_until(lambda: shared(members))
        with producing(tmp_path, server) as nodes:
            for member in members:
                moves_on(member, nodes)
            seconds_until(lambda: len(started_alerts(members[0])) == NODES)
            fired = started_alerts(members[0])
            # What is not stored when one is killed is evaluated again.
            seconds_until(lambda: len(rows(tmp_path, "SELECT job FROM alerts")) == NODES)
            took_s = []
            for _ in range(KILLS):
                victim, other = chance.sample(members, k=2)
                victim.kill()
                took_s.append(moves_on(other, nodes))
                assert started_alerts(other) == fired
                victim.start()
                seconds_until(lambda: shared(members))
                moves_on(victim, nodes)
            print("answered again after", *(f"{one:.1f}" for one in took_s), "s")  # noqa: T201
        last = {node.job: node.spool.last_sequence for node in nodes}
        seconds_until(lambda: all(members[0].newest_step(job) == step for job, step in last.items()))
        # What took over a partition last has its alerts with its next round.
        seconds_until(lambda: started_alerts(members[1]) == fired)
        # While a consumer is made the newest come directly, and before those that wait in the stream.
        seconds_until(lambda: len(rows(tmp_path, "SELECT step FROM steps")) == sum(last.values()))
        members[0].stop()
        seconds_until(lambda: shared(members[1:]))
        assert len(members[1].get("/api/v1/http_sd")) == PARTITIONS
        for number in range(PARTITIONS):
            # A member holds a partition's lease before it reads and answers.
            seconds_until(lambda number=number: members[1].metrics(number).get("perfd_nats_reading") == 1.0)
            found = members[1].metrics(number)
            assert found["perfd_partition_lease_held"] == 1.0
            assert found["perfd_group_partitions"] == PARTITIONS
            assert found["perfd_group_members"] == 1.0
            assert found["perfd_partition_epoch"] > 0.0
            assert found["perfd_nats_interruptions_total"] >= 0.0
        members[1].stop()
    stored: dict[str, list[int]] = {}
    for job, step in rows(tmp_path, "SELECT job, step FROM steps ORDER BY step"):
        stored.setdefault(job, []).append(step)
    assert stored == {job: list(range(1, step + 1)) for job, step in last.items()}


def test_a_holder_that_was_paused_neither_answers_nor_writes_when_it_comes_back(
    tmp_path: Path, server: NatsServer
) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(PostgresCluster(settings="fsync = off"))
        settings = config(tmp_path, url=cluster.url)
        first = stack.enter_context(Member(tmp_path, [server.address], "a", **settings))
        seconds_until(lambda: None not in first.holders())
        with producing(tmp_path, server) as nodes:
            moves_on(first, nodes)
            before = first.holders()
            seconds_until(lambda: len(started_alerts(first)) == NODES)
            fired = started_alerts(first)
            # What is not stored when it is paused is evaluated again.
            of_all = " + ".join(f"(SELECT count(*) FROM perfd_{n}.alerts)" for n in range(PARTITIONS))
            seconds_until(lambda: cluster.sql(f"SELECT {of_all}") == [(NODES,)])
            first.signal(signal.SIGSTOP)
            second = stack.enter_context(Member(tmp_path, [server.address], "b", **settings))
            moves_on(second, nodes)
            assert not set(second.holders()) & set(before)
            first.signal(signal.SIGCONT)
            seconds_until(lambda: shared([first, second]))
            moves_on(first, nodes)
            moves_on(second, nodes)
        last = {node.job: node.spool.last_sequence for node in nodes}
        seconds_until(lambda: all(first.newest_step(job) == step for job, step in last.items()))
        assert started_alerts(first) == started_alerts(second) == fired

        def stored() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for number in range(PARTITIONS):
                for job, step in cluster.sql(f"SELECT job, step FROM perfd_{number}.steps ORDER BY step"):
                    found.setdefault(job, []).append(step)
            return found

        # While a consumer is made the newest come directly, and before those that wait in the stream.
        seconds_until(lambda: stored() == {job: list(range(1, step + 1)) for job, step in last.items()})


def test_a_partition_whose_history_another_process_wrote_to_is_started_anew(
    tmp_path: Path, server: NatsServer
) -> None:
    """As when an earlier holder opened it while the present one had lost its connection."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(PostgresCluster(settings="fsync = off"))
        member = stack.enter_context(
            Member(tmp_path, [server.address], "a", **config(tmp_path, url=cluster.url))
        )
        with producing(tmp_path, server) as nodes:
            moves_on(member, nodes)
            for number in range(PARTITIONS):
                cluster.sql(f"UPDATE perfd_{number}.writer SET generation = generation + 1")
            cluster.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'perfd agg%'"
            )
            wanted = {node.job: node.spool.last_sequence + 1 for node in nodes}

            def stored() -> dict[str, int]:
                return {
                    job: step
                    for number in range(PARTITIONS)
                    for job, step in cluster.sql(
                        f"SELECT job, max(step) FROM perfd_{number}.steps GROUP BY job"
                    )
                }

            seconds_until(lambda: all(stored().get(job, 0) >= step for job, step in wanted.items()), 60.0)
