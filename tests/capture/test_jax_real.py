"""Captures of a real JAX job through its profiler server, from `perfd run` to the file.

`PERFD_TORCH_PYTHON` names an interpreter that has JAX; `.ci/run` makes one.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perfd.capture.jax.xplane_contents import contents_of

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")
_JOB = """
import time, jax, jax.numpy as jnp
jax.profiler.start_server({port})
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.ones((64, 64))
step = 0
while True:
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        f(x).block_until_ready()
    step += 1
    if step == 3:
        print("trains", flush=True)
    time.sleep(0.05)
"""

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not PYTHON and not os.environ.get("CI"),
        reason="PERFD_TORCH_PYTHON does not name an interpreter with JAX",
    ),
]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_job_with_a_profiler_server_is_captured_and_its_steps_are_counted(tmp_path):
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with JAX; .ci/run makes one"
    config = tmp_path / "perfd.json"
    config.write_text(
        json.dumps(
            {
                "agent": {"capture": {"min_free_bytes": 0, "jax": {"cpu_only": True}}},
                "aggregator": {"http_listen": "127.0.0.1:0"},
            }
        )
    )
    perfd = [sys.executable, "-m", "perfd"]
    run = [*perfd, "run", "--jax", "--config", str(config), "--job", "llama"]
    port = _free_port()
    watched = subprocess.Popen(
        [*run, "--out", str(tmp_path), "--", PYTHON, "-c", _JOB.format(port=port)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        live = "perfd: live page at "
        address = next(line for line in watched.stderr if line.startswith(live)).removeprefix(live).strip()
        assert watched.stdout.readline() == "trains\n"
        start = [*perfd, "capture", "start", "llama", "--steps", "5", "--duration", "2", "--wait", "--json"]
        done = subprocess.run([*start, "--aggregator", address], capture_output=True, text=True, check=False)
        capture = json.loads(done.stdout)["capture"]
    finally:
        watched.terminate()
        watched.communicate()
    assert (capture["tool"], capture["state"]) == ("jax", "done"), done
    (rank,) = capture["ranks"]
    (file,) = rank["files"]
    assert file["path"].endswith(".xplane.pb")
    contents = contents_of(Path(file["path"]))
    numbers = [step.number for step in contents.recorded.steps]
    # On a CPU there is no device; the annotations of the loop are there, and no step is left out.
    assert not contents.device_work
    assert numbers == list(range(numbers[0], numbers[0] + rank["whole_steps"]))
    assert len(numbers) > 1
