"""Captures of a real JAX job through its profiler server, from `perfd run` to the file.

`PERFD_TORCH_PYTHON` names an interpreter that has JAX; `.ci/run` makes one.
"""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
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

_SLOWED = """
import time, jax, jax.numpy as jnp
jax.profiler.start_server({port})
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.ones((64, 64))
print("trains", flush=True)
step = 0
while True:
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        f(x).block_until_ready()
    time.sleep(0.05 if step < 60 else 0.3)
    step += 1
    print(f"step {{step}} loss 0.5", flush=True)
"""
"""Prints its loss; from step 60 on it is slow."""
_RULES = """
groups:
  - name: mine
    rules:
      - alert: SlowStep
        expr: perfd_step_time_last_seconds > 0.2
        labels: {severity: warning, capture: default}
        annotations: {summary: a slow step}
"""
PERFD = [sys.executable, "-m", "perfd"]

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


@contextmanager
def watched(tmp_path, job: str, *options: str):
    """A job under `perfd run --jax`, once it trains: its process, and the address of its page."""
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
    run = [*PERFD, "run", "--jax", "--config", str(config), "--job", "llama", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [*run, *options, "--", PYTHON, "-c", job],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        live = "perfd: live page at "
        address = next(line for line in process.stderr if line.startswith(live)).removeprefix(live).strip()
        assert process.stdout.readline() == "trains\n"
        yield address
    finally:
        process.terminate()
        process.communicate()


def test_a_job_with_a_profiler_server_is_captured_and_its_steps_are_counted(tmp_path):
    with watched(tmp_path, _JOB.format(port=_free_port())) as address:
        start = [*PERFD, "capture", "start", "llama", "--steps", "5", "--duration", "2", "--wait", "--json"]
        until_s = time.monotonic() + 120
        while True:
            done = subprocess.run(
                [*start, "--aggregator", address], capture_output=True, text=True, check=False
            )
            # The job may train before the first batch has named it.
            if "There is no job" not in done.stderr:
                break
            assert time.monotonic() < until_s, done
        capture = json.loads(done.stdout)["capture"]
    assert (capture["tool"], capture["state"]) == ("jax", "done"), done
    assert_steps(capture)


def test_a_rule_that_fires_captures_the_job(tmp_path):
    rules = tmp_path / "slow.yaml"
    rules.write_text(_RULES)
    with watched(tmp_path, _SLOWED.format(port=_free_port()), "--rules", str(rules)) as address:
        captures: list[dict] = []
        until_s = time.monotonic() + 120
        while not any(one["state"] in {"done", "failed"} for one in captures):
            assert time.monotonic() < until_s, captures
            time.sleep(0.5)
            listed = [*PERFD, "capture", "list", "--json", "--aggregator", address]
            done = subprocess.run(listed, capture_output=True, text=True, check=False)
            captures = json.loads(done.stdout)["captures"] if done.returncode == 0 else []
    (capture,) = (one for one in captures if one["state"] in {"done", "failed"})
    assert (capture["tool"], capture["state"]) == ("jax", "done"), captures
    assert_steps(capture)


def assert_steps(capture: dict) -> None:
    """Every step is in its file, and none is left out."""
    (rank,) = capture["ranks"]
    (file,) = rank["files"]
    assert file["path"].endswith(".xplane.pb")
    contents = contents_of(Path(file["path"]))
    numbers = [step.number for step in contents.recorded.steps]
    # On a CPU there is no device; the annotations of the loop are there, and no step is left out.
    assert not contents.device_work
    assert numbers == list(range(numbers[0], numbers[0] + rank["whole_steps"]))
    assert len(numbers) > 1
