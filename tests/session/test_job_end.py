"""When a job ended is when `perfd run` saw it end, however long its monitor takes to start and to read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from perfd.session.channel import Frame, FrameKind
from perfd.session.monitor import watch
from perfd.session.supervisor import MonitorSettings

S = 1_000_000_000
BEGAN_S_AGO = 60
"""What a monitor that starts and reads slowly would be late by."""


def frames(settings: MonitorSettings, steps: int, step_ns: int, after_ns: int) -> Iterator[Frame]:
    """Of a job that prints a line a step, and ends so long after the last one."""
    began = time.time_ns() - BEGAN_S_AGO * S
    yield Frame(FrameKind.SETTINGS, began, json.dumps(asdict(settings)).encode())
    yield Frame(FrameKind.STARTED, began, str(os.getpid()).encode())
    for step in range(1, steps + 1):
        line = f"step {step}: loss 2.5, {step_ns / 1e6} ms\n"
        yield Frame(FrameKind.STDOUT, began + step * step_ns, line.encode())
    yield Frame(FrameKind.ENDED, began + steps * step_ns + after_ns, b"0")


@pytest.mark.parametrize(("after_ns", "goodput"), [(0, 1.0), (2 * S, 0.5)])
def test_the_goodput_of_a_short_job_does_not_count_what_comes_after_it(
    after_ns: int, goodput: float, tmp_path: Path
) -> None:
    configuration = tmp_path / "session.yaml"
    configuration.write_text("aggregator: {http_listen: null}\nagent: {capture: {enabled: false}}\n")
    settings = MonitorSettings(
        job="short",
        command=["train"],
        node="n0",
        config=str(configuration),
        results=str(tmp_path / "results"),
    )
    (tmp_path / "results").mkdir()
    watch(frames(settings, 40, S // 20, after_ns))
    (job,) = json.loads((tmp_path / "results/summary.json").read_bytes())["jobs"]
    assert job["steps"]["count"] == 40
    assert job["goodput_ratio"] == pytest.approx(goodput, abs=0.01)
