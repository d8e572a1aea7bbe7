"""Aggregators of an earlier version are replaced one by one, under load, by this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from jetstream.test_group import config, moves_on, producing, rows, shared, started_alerts

from tests.support.group_members import ROOT, Member, seconds_until
from tests.support.nats_server import NatsServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PREVIOUS = os.environ.get("TEST_PREVIOUS", "74bbc400cebc9ec1752a7150398dc68f2f255445")
"""The commit of the earlier version: set it to the newest release after each release."""
PREVIOUS_PYTHON = os.environ.get("TEST_PREVIOUS_PYTHON")
"""Instead, an interpreter in whose environment the earlier version is installed, as from a wheel."""


@pytest.fixture
def previous(tmp_path: Path) -> dict[str, Any]:
    """What runs the earlier version."""
    if PREVIOUS_PYTHON is not None:
        return {"python": PREVIOUS_PYTHON, "checkout": tmp_path}
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{PREVIOUS}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"This checkout has no history with {PREVIOUS}.")
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=True).stdout
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return {"checkout": folder}


def test_aggregators_are_upgraded_one_by_one_without_loss(tmp_path: Path, previous: dict[str, Any]) -> None:
    settings = config(tmp_path, path=str(tmp_path / "history.sqlite"))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(NatsServer(tmp_path))

        def member(name: str, **version: Any) -> Member:
            return stack.enter_context(Member(tmp_path, [server.address], name, **version, **settings))

        old = [member(name, **previous) for name in "ab"]
        seconds_until(lambda: shared(old))
        with producing(tmp_path, server) as nodes:
            seconds_until(lambda: len(started_alerts(old[0])) == len(nodes))
            fired = started_alerts(old[0])
            seconds_until(lambda: len(rows(tmp_path, "SELECT job FROM alerts")) == len(nodes))
            old[0].stop()
            first = member("c")
            # Each of the two versions answers for what the other one holds.
            mixed = [first, old[1]]
            seconds_until(lambda: shared(mixed))
            for one in mixed:
                moves_on(one, nodes)
                assert started_alerts(one) == fired
            old[1].stop()
            new = [first, member("d")]
            seconds_until(lambda: shared(new))
            for one in new:
                moves_on(one, nodes)
        last = {node.job: node.spool.last_sequence for node in nodes}
        seconds_until(lambda: all(new[0].newest_step(job) == step for job, step in last.items()))
        assert [started_alerts(one) for one in new] == [fired, fired]
        for one in new:
            one.stop()
    stored: dict[str, list[int]] = {}
    for job, step in rows(tmp_path, "SELECT job, step FROM steps ORDER BY step"):
        stored.setdefault(job, []).append(step)
    assert stored == {job: list(range(1, step + 1)) for job, step in last.items()}
