"""What an agent sent is in history, however often server, aggregator and agent are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jetstream.support import WAIT_S, stored_steps, until

from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system
KILLS = int(os.environ.get("TEST_KILLS", "12"))
TESTS = Path(__file__).parents[1]


class Process:
    """A program of perfd's that is killed and started again."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PATH": "/usr/bin"},
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def finish(self) -> str:
        """Ask it to end; returns what it printed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.communicate(timeout=4 * WAIT_S)[0]


def test_sent_is_stored_over_kills_of_server_aggregator_and_agent(tmp_path: Path) -> None:
    chance = random.Random(20)
    history, config = tmp_path / "history.sqlite", tmp_path / "aggregator.yaml"
    with NatsServer(tmp_path) as server:
        config.write_text(
            json.dumps(
                {
                    "listen": "127.0.0.1:0",
                    "http_listen": None,
                    "history": {"path": str(history)},
                    "nats": {"servers": [server.address], "max_bytes": 64 << 20},
                }
            )
        )
        aggregator = Process(
            ["-m", "perfd", "aggregator", "--config", str(config)], tmp_path / "aggregator.log"
        )
        program = TESTS / "jetstream" / "agent_process.py"
        agent = Process([str(program), str(tmp_path / "spool"), server.address, "n0"], tmp_path / "agent.log")
        with contextlib.ExitStack() as stack:
            for process in (aggregator, agent):
                process.start()
                stack.callback(process.kill)
            assert until(lambda: stored_steps(history, "job-n0"))
            for _ in range(KILLS):
                victims = chance.sample([server, aggregator, agent], k=chance.choice([1, 1, 2]))
                for victim in victims:
                    victim.kill()
                time.sleep(chance.random())
                for victim in victims:
                    victim.start()
                # Mostly so late that all of them are in the middle of their work.
                before = len(stored_steps(history, "job-n0"))
                if chance.random() < 0.7:
                    assert until(lambda seen=before: len(stored_steps(history, "job-n0")) > seen)
            last = int(agent.finish())
            stored = until(lambda: len(stored_steps(history, "job-n0")) >= last)
            steps = stored_steps(history, "job-n0")
            aggregator.finish()
            assert stored, (tmp_path / "aggregator.log").read_text()[-2000:]
            assert steps == list(range(1, last + 1))
