"""What `benchmarks.chaos` breaks: an aggregator's process, and agents' spools and streams that send to it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfd.agent.spool import Spool
from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.clock import SystemClock
from perfd.config import UplinkConfig
from perfd.model import Batch, TrainingStep
from perfd.wire.convert import encode_message

_START_WITHIN_S = 180.0
_ROUND_S = 5.0
"""Analysis is not what is tested: its rounds may be rare."""


class ChaosAggregator:
    """`perfd aggregator` on one address, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.history = folder / "history.sqlite"
        self.clock_offset = folder / "clock_offset"
        self._config = folder / "aggregator.yaml"
        self._log = folder / "aggregator.log"
        self.address = ""
        self._listen = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self, *, full: bool = False) -> None:
        self._config.write_text(
            f"listen: {self._listen}\nhttp_listen: null\nround_interval_s: {_ROUND_S}\n"
            f"history: {{path: {self.history}}}\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "benchmarks.stepped_clock", "aggregator", "--log-json"]
        with self._log.open("a", encoding="utf-8") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                [*command, "--config", str(self._config)],
                stderr=log,
                stdout=log,
                text=True,
                env={**os.environ, "PERFD_CLOCK_OFFSET_FILE": str(self.clock_offset)},
            )
        if full:
            self.limit_files(0)
        deadline_s = time.monotonic() + _START_WITHIN_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if self._answers(begin):
                return
            time.sleep(0.05)
        raise RuntimeError(f"The aggregator did not start: {self._log.read_text(encoding='utf-8')[-2000:]}")

    def _answers(self, log_begin: int) -> bool:
        if self.address:
            # With a full disk it writes no log.
            host, _, port = self.address.rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return True
            return False
        for line in self._log.read_text(encoding="utf-8")[log_begin:].splitlines():
            with suppress(ValueError, KeyError):
                self.address = self._listen = json.loads(line)["agents"]
                return True
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def limit_files(self, size_bytes: int) -> None:
        """Files of the process cannot grow beyond a size: what a full disk is like."""
        if self.process is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def resident_bytes(self) -> int:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class ChaosAgent:
    """A real spool and stream, without collectors."""

    folder: Path
    job: str
    address: str
    spool_bytes: int
    steps: dict[tuple[str, int], int] = field(default_factory=dict)
    """The step of each sequence, by the identity of the spool."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    number: int = 0
    clock_offset_ns: int = 0
    dropped: int = 0
    spool: Spool = field(init=False)
    uplink: GrpcUplink = field(init=False)

    def open(self) -> None:
        self.spool = Spool(self.folder, max_bytes=self.spool_bytes)
        config = UplinkConfig(address=self.address, backoff_initial_s=0.05, backoff_max_s=0.5)
        self.uplink = GrpcUplink(
            config, node=self.job, spool=self.spool, clock=SystemClock(), on_request=lambda _: None
        )
        self.uplink.start()

    def close(self) -> None:
        self.uplink.stop(0.0)
        self.note()
        self.dropped += self.spool.stats().dropped_records
        self.spool.close()

    def note(self) -> None:
        """Remember what is acknowledged."""
        agent_id = self.spool.agent_id
        known = self.acknowledged.get(agent_id, 0)
        self.acknowledged[agent_id] = max(known, self.uplink.state.acknowledged_sequence)

    def send(self) -> None:
        self.number += 1
        now_unix_ns = time.time_ns() + self.clock_offset_ns
        line = TrainingStep(job=self.job, step=self.number, time_unix_ns=now_unix_ns, step_time_s=1.0)
        sequence = self.spool.append(
            lambda number: encode_message(Batch(sequence=number, sent_unix_ns=now_unix_ns, records=[line])),
            records=1,
        )
        self.steps[self.spool.agent_id, sequence] = self.number
        self.uplink.notify()

    def acknowledged_steps(self) -> set[int]:
        return {
            step
            for (agent_id, sequence), step in self.steps.items()
            if sequence <= self.acknowledged.get(agent_id, 0)
        }


@dataclass(frozen=True, slots=True)
class ChaosFleet:
    agents: list[ChaosAgent]
    lines_per_s: float
    """Of all agents together."""
    on_flipped_pages: set[tuple[str, int]] = field(default_factory=set)
    """Job and step of each line."""

    def send(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for agent in self.agents:
                agent.send()
            time.sleep(len(self.agents) / self.lines_per_s)
