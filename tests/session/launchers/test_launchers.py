"""Launchers around a loop of two ranks under `perfd run`: ranks, steps and the end are known.

`PERFD_TORCH_PYTHON` names an interpreter with PyTorch and Accelerate; `.ci/run` makes one, and installs
Debian's Open MPI and MPICH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")
DEEPSPEED = os.environ.get("PERFD_DEEPSPEED_PYTHON", "")
"""An interpreter with DeepSpeed, which is not built in CI: it needs `pip install --no-build-isolation`."""
LOOP = str(Path(__file__).with_name("ddp_loop.py"))
STEPS = 20
RANKS = 2


def torchrun(port: int) -> Sequence[str]:
    return (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", LOOP)


def accelerate(port: int) -> Sequence[str]:
    options = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no")
    options += ("--dynamo_backend", "no", "--main_process_port", str(port))
    return (PYTHON, "-m", "accelerate.commands.accelerate_cli", "launch", *options, LOOP)


def deepspeed(port: int) -> Sequence[str]:
    options = ("--num_accelerators", "2", "--master_port", str(port))
    return (DEEPSPEED, "-m", "deepspeed.launcher.runner", *options, LOOP)


def openmpi(_: int) -> Sequence[str]:
    options = ("-n", "2", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root")
    return ("mpirun.openmpi", *options, PYTHON, LOOP)


def mpich(_: int) -> Sequence[str]:
    return ("mpirun.mpich", "-n", "2", PYTHON, LOOP)


def spawn(_: int) -> Sequence[str]:
    return (PYTHON, LOOP, "--spawn")


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not PYTHON and not os.environ.get("CI"), reason="PERFD_TORCH_PYTHON does not name an interpreter"
)
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(torchrun, id="torchrun"),
        pytest.param(accelerate, id="accelerate"),
        pytest.param(
            deepspeed,
            id="deepspeed",
            marks=pytest.mark.skipif(not DEEPSPEED, reason="PERFD_DEEPSPEED_PYTHON names no interpreter"),
        ),
        pytest.param(openmpi, id="openmpi"),
        pytest.param(mpich, id="mpich"),
        pytest.param(spawn, id="spawn"),
    ],
)
def test_ranks_steps_and_the_end_are_known_under_a_launcher(
    launcher: Callable[[int], Sequence[str]], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = launcher(port)
    if shutil.which(command[0]) is None and not os.environ.get("CI"):
        pytest.skip(f"{command[0]} is not installed")
    configuration = tmp_path / "perfd.yaml"
    configuration.write_text("aggregator: {http_listen: '127.0.0.1:0'}\nagent: {capture: {enabled: false}}\n")
    perfd = [sys.executable, "-m", "perfd", "run", "--no-nsys", "--job", "launched"]
    perfd += ["--config", str(configuration), "--out", str(tmp_path / "out"), "--"]
    process = subprocess.Popen(
        [*perfd, *command, str(STEPS)],
        env=environment(port, tmp_path / "seen"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        until_seen(process)
        (tmp_path / "seen").touch()
        printed, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, said[-3000:]
    assert f"step {STEPS}/{STEPS}" in printed
    (summary,) = (tmp_path / "out").glob("*/summary.json")
    (job,) = json.loads(summary.read_bytes())["jobs"]
    assert (job["steps"]["count"], job["steps"]["last"]) == (STEPS, STEPS)
    # A job that fails has a note with its exit code here.
    assert "The job ended with" not in said


def environment(port: int, seen: Path) -> dict[str, str]:
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        "SEEN": str(seen),
    }


def until_seen(process: subprocess.Popen[str]) -> None:
    """Return once /metrics shows the last step and all ranks; pytest's time limit ends a wait without end."""
    assert process.stderr is not None
    address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
    while process.poll() is None:
        with urllib.request.urlopen(f"{address}metrics") as response:
            page = response.read().decode()
        if (value(page, "perfd_step"), value(page, "perfd_job_ranks")) == (STEPS, RANKS):
            return
        time.sleep(0.1)
    raise AssertionError(process.stderr.read()[-3000:])


def value(page: str, metric: str) -> int | None:
    found = re.search(rf"^{metric}\{{.*\}} (\S+)", page, re.MULTILINE)
    return None if found is None else round(float(found[1]))
