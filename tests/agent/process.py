"""Runs a real `perfd agent` process, with a collector that a distribution of its own installs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

_COLLECTOR = """
import itertools
from perfd.collector import CollectorSpec, Options
from perfd.model import TrainingStep

class Counting:
    def __init__(self, options, settings):
        self._job, self._steps = settings.job, itertools.count(1)

    def collect(self):
        return [TrainingStep(job=self._job, step=next(self._steps))]

    def close(self):
        pass

SPEC = CollectorSpec(name="counting", options=Options, create=Counting, interval_s=0.1)
"""


def environment(directory: Path) -> dict[str, str]:
    """The environment of a process in which the collector `counting` is installed."""
    plugins = directory / "plugins"
    metadata = plugins / "counting-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (plugins / "counting_collector.py").write_text(_COLLECTOR)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[perfd.collectors]\ncounting = counting_collector:SPEC\n")
    return {**os.environ, "PYTHONPATH": str(plugins), "XDG_STATE_HOME": str(directory / "state")}


def configuration(directory: Path, address: str, **changes: Any) -> Path:
    """A configuration file; of the collectors only `counting` runs."""
    collectors = {point.name: {"enabled": False} for point in entry_points(group="perfd.collectors")}
    config = {
        "node": "n1",
        "job": "j1",
        "listen": None,
        "spool": {"directory": str(directory / "spool")},
        "uplink": {"address": address, "batch_interval_s": 0.05, "backoff_initial_s": 0.05},
        "collectors": collectors,
        **changes,
    }
    path = directory / "agent.yaml"
    path.write_text(json.dumps(config))
    return path


def start(directory: Path, *arguments: str, code: str | None = None) -> subprocess.Popen[str]:
    """`perfd agent ARGUMENTS`, or other code in an interpreter of the same environment."""
    command = ["-m", "perfd", "agent"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        env=environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of an agent that ends by itself."""
    process = start(directory, *arguments)
    output, errors = process.communicate()
    return process.returncode, output, errors
