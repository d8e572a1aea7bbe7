"""A node with a stand-in nsys, a job launched in it, and an executor; everything is ended afterwards."""

import contextlib
import os
import queue
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfd.capture.node.capture_executor import CaptureExecutor
from perfd.capture.node.capture_storage import CaptureStore, free_bytes
from perfd.capture.node.job_guards import JobProgress
from perfd.capture.nsys.nsys_cli import NsysCli, session_name
from perfd.capture.nsys.nsys_installation import inspect
from perfd.capture.nsys.nsys_tool import NsysOptions, NsysTool
from perfd.clock import SystemClock
from perfd.model import CaptureRequest, CaptureTool
from perfd.session.job.child_process import groups_below
from tests.support import nsys_installation

PATIENCE_S = 45
"""A hang becomes a failure after so long; nothing waits for it otherwise."""


@dataclass
class Node:
    """One node: where nsys, captures and jobs are, and what its executor said."""

    directory: Path
    nsys: Path
    statuses: queue.Queue = field(default_factory=queue.Queue)
    step: int | None = None
    progress: JobProgress | None = None
    free: object = free_bytes
    max_bytes: int = 10**9
    executors: list = field(default_factory=list)
    jobs: list = field(default_factory=list)

    @property
    def captures(self):
        return self.directory / "captures"

    @property
    def cli(self):
        return NsysCli(self.nsys)

    def free_bytes(self, path):
        return self.free(path)

    def launch(self, job="llama", ranks=2, unique="1", session=None, processes=()):
        """Start a job of sleeping ranks under `nsys launch`; returns when they are there.

        `processes` are the variables of each process, when it is not to be one per rank.
        """
        session = session or session_name(job, unique)
        ready = self.directory / f"ready-{session}"
        ready.mkdir()
        processes = processes or [f"RANK={rank}" for rank in range(ranks)]
        script = "".join(
            f"{variables} sh -c 'touch {ready}/{number}; exec sleep 3600' & "
            for number, variables in enumerate(processes)
        )
        process = subprocess.Popen(
            [self.nsys, "launch", f"--session-new={session}", "sh", "-c", script + "wait"],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        self.jobs.append(process)
        self.until(lambda: len(list(ready.iterdir())) == len(processes) and self.cli.session(session))
        return process

    def until(self, holds):
        clock = SystemClock()
        deadline = clock.monotonic_s() + PATIENCE_S
        while not holds():
            assert clock.monotonic_s() < deadline, "it never became true"
            clock.sleep(0.02)

    def executor(self, *, options=None, clock=None, **changes):
        clock = clock or SystemClock()
        tool = NsysTool(
            inspect(self.nsys),
            placements=lambda job: (),
            clock=clock,
            options=options or NsysOptions(settle_s=0),
        )
        settings = {
            "tools": [tool],
            "store": CaptureStore(
                self.captures,
                max_bytes=self.max_bytes,
                min_free_bytes=10**6,
                free=self.free_bytes,
            ),
            "clock": clock,
            "send_status": self.statuses.put,
            "progress": lambda job: self.progress or JobProgress(step=self.step),
        }
        executor = CaptureExecutor(**{**settings, **changes})
        self.executors.append(executor)
        executor.start()
        return executor

    def next_status(self):
        return self.statuses.get(timeout=PATIENCE_S)

    def until_state(self, state):
        """The first status of that state; fails when a different final one comes before it."""
        while True:
            status = self.next_status()
            if status.state is state:
                return status
            assert not status.state.final, status

    def until_final(self):
        """The next final status."""
        while not (status := self.next_status()).state.final:
            pass
        return status

    def session_state(self, job="llama", unique="1"):
        session = self.cli.session(session_name(job, unique))
        return session.state if session else None

    def end(self):
        for executor in self.executors:
            executor.stop()
        for job in self.jobs:
            # What `nsys launch` runs is in a session of its own.
            for group in (*groups_below(job.pid), job.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            job.stdout.close()
            job.wait()


def request(capture_id="c1", **changes):
    settings = {"job": "llama", "tool": CaptureTool.NSYS, "max_duration_s": 0.3}
    return CaptureRequest(capture_id=capture_id, **{**settings, **changes})


@pytest.fixture
def make_node(tmp_path):
    nodes = []

    def make(**how):
        directory = tmp_path / f"node{len(nodes)}"
        node = Node(directory=directory, nsys=nsys_installation.install(directory / "nsys", **how))
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.end()


@pytest.fixture
def node(make_node):
    return make_node()
