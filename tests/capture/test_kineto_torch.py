"""Captures with Kineto of real PyTorch processes.

`PERFD_TORCH_PYTHON` names an interpreter that has PyTorch 2.13 or later; perfd itself needs none.
`.ci/run` makes such an environment, and there these tests fail without it.
"""

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from capture.conftest import Node, request

from benchmarks.capture_end import PHASES, Options, batch
from perfd.capture.kineto.daemon_socket import KinetoEndpoint
from perfd.capture.kineto.kineto_tool import KinetoOptions, KinetoTool
from perfd.clock import SystemClock
from perfd.model import CaptureState, CaptureTool, RankPlacement

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")
PROCESSES = 12
"""More than the ten datagrams that Linux queues on a socket (net.unix.max_dgram_qlen)."""
_JOB = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
step = 0
while True:
    model(torch.ones(8, 64)).sum().backward()
    # An optimizer of torch's would load its compiler first, 2 s in each process.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
    step += 1
    if step == 3:
        print("trains", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def node(tmp_path):
    node = Node(directory=tmp_path, nsys=Path("/nowhere"))
    yield node
    node.end()


@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    not PYTHON and not os.environ.get("CI"),
    reason="PERFD_TORCH_PYTHON does not name an interpreter with PyTorch",
)
def test_twelve_processes_that_start_at_once_are_all_traced(node, monkeypatch):
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with PyTorch; .ci/run makes one"
    monkeypatch.setattr("capture.conftest.PATIENCE_S", 120)
    with tempfile.TemporaryDirectory() as sockets:
        endpoint = KinetoEndpoint(Path(sockets), SystemClock())
        placements = []
        tool = KinetoTool(
            endpoint,
            placements=lambda job: placements,
            clock=SystemClock(),
            options=KinetoOptions(cpu_only=True),
        )
        executor = node.executor(tools=[tool])
        for rank in range(PROCESSES):
            process = subprocess.Popen(
                [PYTHON, "-c", _JOB],
                env={**os.environ, "KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": sockets},
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            node.jobs.append(process)
            placements.append(RankPlacement(job="llama", rank=rank, pid=process.pid))
        for process in node.jobs:
            assert process.stdout.readline() == b"trains\n"
        node.until(lambda: len(endpoint.clients()) == PROCESSES)
        # On a busy machine libkineto may be too late for the start, and a user asks again.
        for attempt in range(5):
            executor.handle(request(f"c{attempt}", tool=CaptureTool.KINETO, max_duration_s=1.0))
            ends = ends_of(node)
            if all(end.state is not CaptureState.LATE for end in ends.values()):
                break
        executor.stop()
    assert [end.state for end in ends.values()] == [CaptureState.DONE] * PROCESSES, ends
    starts_us = [began_us(Path(end.files[0].path)) for end in ends.values()]
    spread_ms = (max(starts_us) - min(starts_us)) / 1e3
    logging.getLogger(__name__).info("The windows of %d ranks began within %.1f ms.", PROCESSES, spread_ms)
    assert spread_ms < 1000, "libkineto's own tick; a window of one step would not be the same step"


def ends_of(node):
    """The final status of each rank."""
    ends = {}
    while len(ends) < PROCESSES:
        status = node.next_status()
        if status.state.final:
            ends.update(dict.fromkeys(status.ranks, status))
    return ends


def began_us(trace):
    events = json.loads(trace.read_text())["traceEvents"]
    return next(event["ts"] for event in events if event.get("name") == "PyTorch Profiler (0)")


@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    not PYTHON and not os.environ.get("CI"),
    reason="PERFD_TORCH_PYTHON does not name an interpreter with PyTorch",
)
def test_a_job_that_was_started_for_kineto_is_captured_by_it_without_a_word_more(tmp_path):
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with PyTorch; .ci/run makes one"
    with tempfile.TemporaryDirectory() as sockets:
        config = tmp_path / "perfd.json"
        kineto = {"cpu_only": True, "socket_directory": sockets}
        config.write_text(
            json.dumps(
                {
                    "agent": {"capture": {"min_free_bytes": 0, "kineto": kineto}},
                    "aggregator": {"http_listen": "127.0.0.1:0"},
                }
            )
        )
        perfd = [sys.executable, "-m", "perfd"]
        run = [*perfd, "run", "--kineto", "--config", str(config), "--job", "llama"]
        watched = subprocess.Popen(
            [*run, "--out", str(tmp_path), "--", PYTHON, "-c", _JOB],
            env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "KINETO_IPC_SOCKET_DIR": sockets},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        live = "perfd: live page at "
        (address,) = (line.removeprefix(live).strip() for line in _until(watched.stderr, live))
        assert watched.stdout.readline() == "trains\n"
        start = [*perfd, "capture", "start", "llama", "--duration", "1", "--wait", "--json"]
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + 240
        while clock.monotonic_s() < deadline_s:
            # Refused until the process has asked its daemon for the first time, and late on a busy machine.
            done = subprocess.run(
                [*start, "--aggregator", address], capture_output=True, text=True, check=False
            )
            capture = json.loads(done.stdout)["capture"] if done.stdout else {}
            if capture.get("state") == "done":
                break
            clock.sleep(1)
        watched.terminate()
        watched.communicate()
    assert (capture.get("tool"), capture.get("state")) == ("kineto", "done"), done
    assert list(tmp_path.glob("*/captures/*/*.json*"))


def _until(lines, start):
    """The first line that starts so, alone."""
    return [next(line for line in lines if line.startswith(start))]


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not PYTHON and not os.environ.get("CI"),
    reason="PERFD_TORCH_PYTHON does not name an interpreter with PyTorch",
)
def test_a_process_that_ends_in_any_phase_of_a_capture_ends_as_it_wanted_to():
    """Without what `perfd run --kineto` adds to the environment, those within the window die of SIGSEGV."""
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with PyTorch; .ci/run makes one"
    options = Options(python=PYTHON, window_s=30.0)
    jobs = batch([phase for phase in PHASES if phase != "none"], options, random.Random(1))
    assert {job.phase: (job.code, job.hung) for job in jobs} == {job.phase: (0, False) for job in jobs}
