"""Memory of the W&B exporter: the processes of many runs, against a server that stands in for W&B's.

    python -m benchmarks.wandb_memory --jobs 50 --steps 200

Each job logs rows of 40 numbers; the figures are proportional set sizes (PSS), which count shared pages once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from perfd.config import WandbConfig
from perfd.exporters.wandb.wandb_messages import LogNumbers
from perfd.exporters.wandb.wandb_runs import WandbRuns
from tests.support.wandb_server import WandbServer

_NUMBERS = 40


def main() -> None:
    """Open runs, log, and print what their processes take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with WandbServer() as server, tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "key"
        key.write_text("k" * 40)
        config = WandbConfig(
            mode="online", base_url=server.url, api_key_file=str(key), directory=directory, timeout_s=120.0
        )
        runs = WandbRuns()
        jobs = [f"job-{number}" for number in range(args.jobs)]
        begin_s = time.monotonic()
        for job in jobs:
            runs.open(job, config, {"perfd_job": job})
        opened_s = time.monotonic() - begin_s
        _print(f"{args.jobs} runs opened in {opened_s:.1f} s")
        for step in range(args.steps):
            for job in jobs:
                numbers = {f"perfd/number_{name}": step + name / _NUMBERS for name in range(_NUMBERS)}
                runs.send(job, LogNumbers({"perfd/step": float(step), **numbers}))
        _print(f"{args.steps} rows each")
        begin_s = time.monotonic()
        runs.close_all()
        print(f"ended in {time.monotonic() - begin_s:.1f} s")
        stored = sum(len(run.rows) for run in server.runs.values())
        print(f"{stored} of {args.jobs * args.steps} rows at the server")


def _print(label: str) -> None:
    found = [(process.name(), process.memory_full_info().pss) for process in psutil.Process().children(True)]
    sizes = ", ".join(f"{name} {pss / 1e6:.0f}" for name, pss in found)
    print(f"{label}: {sum(pss for _, pss in found) / 1e6:.0f} MB ({sizes})", flush=True)


if __name__ == "__main__":
    main()
