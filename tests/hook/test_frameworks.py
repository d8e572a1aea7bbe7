"""One line for a framework, tried with the real ones.

`PERFD_TORCH_PYTHON` names an interpreter that has them; `.ci/run` makes one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from perfd_collectors.hook.datagrams import parse_message

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")
COMPOSER_PYTHON = os.environ.get("PERFD_COMPOSER_PYTHON", "")
"""Composer pins an older torch than the others need: it is tried where this names an interpreter."""
ROOT = Path(__file__).parents[2]
LOOPS = Path(__file__).parent / "loops"

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PYTHON and not os.environ.get("CI"),
        reason="PERFD_TORCH_PYTHON does not name an interpreter with PyTorch",
    ),
]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "hook.sock"))
        yield listener


def run_loop(name: str, folder: Path, python: str = PYTHON) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PERFD_HOOK_SOCKET": str(folder / "hook.sock"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
    }
    command = [python, str(LOOPS / f"{name}_loop.py"), str(folder / "out")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def got(listener: socket.socket) -> list[dict]:
    listener.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(listener.recv(1 << 16))
        except BlockingIOError:
            return [json.loads(message) for message in messages if parse_message(message)]


@pytest.mark.parametrize(
    ("name", "phases", "samples", "tokens", "counts_flops"),
    [
        ("transformers", {"data_loading", "optimizer"}, 8, 128, True),
        ("lightning", {"data_loading", "backward", "optimizer"}, 8, 128, True),
        ("accelerate", set(), 8, 128, False),
        ("jax", set(), 8, 128, True),
    ],
    ids=["transformers", "lightning", "accelerate", "jax"],
)
def test_a_framework_reports_its_steps_with_one_line(
    name: str,
    phases: set[str],
    samples: float,
    tokens: float | None,
    counts_flops: bool,
    agent: socket.socket,
    tmp_path: Path,
) -> None:
    run_loop(name, tmp_path)

    messages = got(agent)

    steps = [message["step"] for message in messages]
    # The first three are warm-up; a loop without an end of its last step leaves that out.
    assert steps == list(range(4, steps[-1] + 1))
    assert steps[-1] >= 11
    assert all(set(message["phases"]) == phases for message in messages)
    assert {message["samples"] for message in messages} == {samples}
    assert {message.get("tokens") for message in messages} == {tokens}
    assert all((message.get("flops", 0) > 0) is counts_flops for message in messages)
    assert all(0 < message["step_s"] < 60 for message in messages)


@pytest.mark.parametrize("name", ["transformers", "lightning", "accelerate", "jax"])
def test_without_an_agent_the_loop_runs_as_ever(name: str, tmp_path: Path) -> None:
    assert "perfd" not in run_loop(name, tmp_path)


@pytest.mark.skipif(
    not COMPOSER_PYTHON, reason="PERFD_COMPOSER_PYTHON does not name an interpreter with Composer"
)
def test_composer_reports_its_steps_with_one_line(agent: socket.socket, tmp_path: Path) -> None:
    run_loop("composer", tmp_path, COMPOSER_PYTHON)

    messages = got(agent)

    assert [message["step"] for message in messages] == list(range(4, 13))
    assert all(set(message["phases"]) == {"data_loading", "forward", "backward"} for message in messages)
    assert {message["samples"] for message in messages} == {8}
    assert all(message["flops"] > 0 for message in messages)
