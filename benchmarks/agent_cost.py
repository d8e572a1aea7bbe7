"""CPU and memory of a real `perfd agent` process that reads 8 made-up GPUs at 1 Hz and streams them.

    python benchmarks/agent_cost.py [--seconds 60] [--gpus 8] [--interval 1.0] [--installed] [--json]

The collector returns 36 columns per GPU without asking NVML, so that what is
measured is the agent: threads, merging, encoding, spool, gRPC. CPU is user plus
system time of /proc/PID/stat over the interval, after a warm-up; memory is
VmRSS, and private plus proportional share of smaps_rollup. A node with GPUs adds
the calls of NVML itself. With `--installed` the collectors that ship run too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tests.support.fake_aggregator import FakeAggregator

WARM_UP_S = 10.0
COLUMNS = 36
COLLECTORS = "perfd.collectors"

_COLLECTOR = """
import random
from perfd.collector import CollectorSpec, Options
from perfd.model import SampleTable, Scope

class GpuOptions(Options, frozen=True):
    gpus: int = 8

class Gpus:
    def __init__(self, options, settings):
        self._gpus, self._clock = options.gpus, settings.clock

    def collect(self):
        now = self._clock.unix_ns()
        gpus = range(self._gpus)
        return [SampleTable(
            scope=Scope.GPU, times_unix_ns=[now for _ in gpus], entities=[str(gpu) for gpu in gpus],
            columns={f"made_up_{c}_ratio": [random.random() for _ in gpus] for c in range(COLUMNS)},
        )]

    def close(self):
        pass

SPEC = CollectorSpec(name="made_up_gpus", options=GpuOptions, create=Gpus)
"""


def main() -> int:
    """Print one measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, FakeAggregator() as aggregator:
        config = configuration(
            Path(directory), aggregator.address, args.gpus, args.interval, installed=args.installed
        )
        found = measure(Path(directory), config, aggregator, args.seconds)
    if args.json:
        print(json.dumps({"schema": "perfd.benchmark.agent_cost/1", **found}))
    else:
        print(
            f"agent, {args.gpus} GPUs x {COLUMNS} columns every {args.interval:g} s, "
            f"over {args.seconds:g} s: "
            f"{found['cpu_ratio']:.2%} of a core, RSS {found['rss_bytes'] / 1e6:.1f} MB "
            f"(PSS {found['pss_bytes'] / 1e6:.1f} MB), {found['threads']} threads, {found['batches']} batches"
        )
    return 0


def configuration(
    directory: Path, address: str, gpus: int, interval_s: float, *, installed: bool
) -> dict[str, Any]:
    """What the agent is told: the collector to run, and where to stream to."""
    others = {} if installed else {point.name: {"enabled": False} for point in entry_points(group=COLLECTORS)}
    return {
        "node": "bench",
        "listen": "127.0.0.1:0",
        "spool": {"directory": str(directory / "spool")},
        "uplink": {"address": address},
        "collectors": {**others, "made_up_gpus": {"interval_s": interval_s, "options": {"gpus": gpus}}},
    }


def measure(
    directory: Path, config: dict[str, Any], aggregator: FakeAggregator, seconds: float
) -> dict[str, Any]:
    """What the agent used between the end of the warm-up and `seconds` later."""
    install_collector(directory / "plugins")
    (directory / "agent.yaml").write_text(json.dumps(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "perfd", "agent", "--config", str(directory / "agent.yaml")],
        env={**os.environ, "PYTHONPATH": str(directory / "plugins")},
    )
    try:
        time.sleep(WARM_UP_S)
        before = cpu_seconds(process.pid), time.monotonic(), len(aggregator.batches)
        time.sleep(seconds)
        after = cpu_seconds(process.pid), time.monotonic(), len(aggregator.batches)
        memory = memory_bytes(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return {
        "cpu_ratio": (after[0] - before[0]) / (after[1] - before[1]),
        "batches": after[2] - before[2],
        **memory,
    }


def install_collector(plugins: Path) -> None:
    """Make the collector an installed distribution, found by its entry point like any other."""
    metadata = plugins / "made_up-1.dist-info"
    metadata.mkdir(parents=True)
    (plugins / "made_up.py").write_text(f"COLUMNS = {COLUMNS}\n{_COLLECTOR}")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: made_up\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[perfd.collectors]\nmade_up_gpus = made_up:SPEC\n")


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    # The name of the process, in parentheses, may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> dict[str, int]:
    """Resident and proportional set size, and the number of threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rollup = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    return {
        "rss_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "pss_bytes": int(rollup["Pss"].split()[0]) * 1024,
        "private_bytes": sum(int(rollup[f"Private_{kind}"].split()[0]) for kind in ("Clean", "Dirty")) * 1024,
        "threads": int(status["Threads"]),
    }


if __name__ == "__main__":
    raise SystemExit(main())
