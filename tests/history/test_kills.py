"""What agents sent is in PostgreSQL, however often server, aggregator and agent are killed or stopped."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from pathlib import Path

import pytest
from jetstream.support import until
from jetstream.test_kills import Process

from tests.support.postgres_server import PostgresCluster
from tests.support.services import free_port

pytestmark = pytest.mark.system
KILLS = int(os.environ.get("TEST_KILLS", "8"))
TESTS = Path(__file__).parents[1]


class Paused:
    """The server, which is stopped with its connections open instead of killed."""

    def __init__(self, server: PostgresCluster) -> None:
        self.kill, self.start = server.pause, server.resume


def stored(server: PostgresCluster, job: str) -> list[int]:
    """The steps of a job; none while the server is away or has no tables."""
    with contextlib.suppress(Exception):
        return [step for (step,) in server.sql(f"SELECT step FROM steps WHERE job = '{job}' ORDER BY step")]
    return []


@pytest.mark.timeout(1200)
def test_sent_batches_are_stored_despite_kills_and_stops(tmp_path: Path) -> None:
    chance = random.Random(20)
    config, listen = tmp_path / "aggregator.yaml", f"127.0.0.1:{free_port()}"
    with PostgresCluster() as server:
        config.write_text(json.dumps({"listen": listen, "http_listen": None, "history": {"url": server.url}}))
        aggregator = Process(
            ["-m", "perfd", "aggregator", "--config", str(config)], tmp_path / "aggregator.log"
        )
        program = TESTS / "history" / "agent_process.py"
        agents = [
            Process([str(program), str(tmp_path), listen, name], tmp_path / f"{name}.log")
            for name in ("n0", "n1")
        ]
        with contextlib.ExitStack() as stack:
            for process in (aggregator, *agents):
                process.start()
                stack.callback(process.kill)
            assert until(lambda: stored(server, "job-n0"))
            for _ in range(KILLS):
                victims = chance.sample(
                    [server, Paused(server), aggregator, *agents], k=chance.choice([1, 1, 2])
                )
                for victim in victims:
                    victim.kill()
                time.sleep(chance.random())
                for victim in reversed(victims):
                    victim.start()
                # Mostly so late that all of them are in the middle of their work.
                before = len(stored(server, "job-n0"))
                if chance.random() < 0.7:
                    assert until(lambda seen=before: len(stored(server, "job-n0")) > seen, 120.0)
            for name, agent in zip(("n0", "n1"), agents, strict=True):
                last = int(agent.finish())
                assert until(lambda job=f"job-{name}", end=last: len(stored(server, job)) >= end)
                assert stored(server, f"job-{name}") == list(range(1, last + 1))
            aggregator.finish()
