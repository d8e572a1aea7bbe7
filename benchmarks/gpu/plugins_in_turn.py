"""What perfd and NCCL's Inspector cost the same processes of a job, block of steps by block of steps.

    python -m benchmarks.gpu.plugins_in_turn --out FOLDER [--gpus 2] [--rounds 20] [--dry-run]

Runs of one job differ by more than either costs (`overhead.py`). Here one job of `perfd run` changes its
plugin between blocks of steps: `off` is a copy of perfd's plugin that asks NCCL for nothing, with perfd's own
process stopped; `perfd` has everything on; `inspector` is NCCL's, set up as its README says to begin with,
with perfd's process stopped. The order within a round is random. What counts is each block's median step
against another mode's in the same round, and the time of one of many 16 KiB all-reduces in a row, for which
the host decides. Printed are medians over rounds with their bootstrapped 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from perfd_collectors.nccl.library import LIBRARY

from benchmarks.gpu.overhead import inspector_library
from perfd.testing.services import free_port

SCHEMA = "perfd.bench.gpu.plugins_in_turn/1"
JOB = Path(__file__).with_name("turns_job.py")
OFF, PERFD, INSPECTOR = "off", "perfd", "inspector"
_RESAMPLES = 10_000
_SHAPE = {
    "layers": 12, "hidden": 2048, "sequence": 2048, "micro_batch": 4, "steps": 10, "small_all_reduces": 4000,
}  # fmt: skip
_SMALL_SHAPE = {
    "layers": 2, "hidden": 64, "sequence": 16, "micro_batch": 2, "steps": 3, "small_all_reduces": 20,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one block of steps took in one mode, and how many operations the plugin recorded of rank 0."""

    mode: str
    step_s: float
    small_s: float
    recorded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A median over rounds, and the interval that holds it with 95 %."""

    median: float
    low: float
    high: float
    rounds: int


def plan(
    modes: Sequence[str], rounds: int, shape: Mapping[str, int], environments: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Each round all modes in random order, after one round that does not count."""
    order = random.Random(1)
    blocks = [
        {"mode": mode, "environment": dict(environments[mode])}
        for _ in range(rounds + 1)
        for mode in order.sample(list(modes), len(modes))
    ]
    return {"shape": dict(shape), "blocks": blocks}


def rounds_of(told: Sequence[Mapping[str, Any]], modes: int) -> list[dict[str, Block]]:
    """The blocks by round and mode, without the first round and one that was cut."""
    blocks = [
        Block(
            mode=one["mode"],
            step_s=statistics.median(one["steps_s"]),
            small_s=one["small_s"],
            recorded=one["recorded"],
        )
        for one in told
    ]
    cut = [blocks[at : at + modes] for at in range(0, len(blocks), modes)]
    return [{block.mode: block for block in one} for one in cut[1:] if len(one) == modes]


def added(differences: Sequence[float], seed: int = 1) -> Added:
    """The median of differences by round, and its bootstrapped interval."""
    values = np.array(differences)
    chosen = np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[chosen], axis=1), [2.5, 97.5])
    return Added(median=float(np.median(values)), low=float(low), high=float(high), rounds=len(values))


def compared(rounds: Sequence[Mapping[str, Block]]) -> dict[str, Any]:
    """By pair of modes, what steps took longer by, and microseconds of each small all-reduce."""
    present = set(rounds[0]) if rounds else set()
    pairs = [(PERFD, OFF), (INSPECTOR, OFF), (INSPECTOR, PERFD)]
    return {
        f"{one} against {other}": {
            "step_ratio": _document([each[one].step_s / each[other].step_s - 1 for each in rounds]),
            "small_all_reduce_us": _document(
                [1e6 * (each[one].small_s - each[other].small_s) for each in rounds]
            ),
        }
        for one, other in pairs
        if {one, other} <= present
    }


def _document(differences: Sequence[float]) -> dict[str, float]:
    found = added(differences)
    return {"median": found.median, "low": found.low, "high": found.high, "rounds": found.rounds}


def _environments(folder: Path, inspector: Path | None) -> dict[str, dict[str, str]]:
    # Another file is another plugin to the loader, with memory of its own; without a folder it wants nothing.
    off = folder / "libnccl-profiler-off.so"
    shutil.copy(LIBRARY, off)
    found = {
        OFF: {"NCCL_PROFILER_PLUGIN": str(off), "PERFD_NCCL_DIR": str(folder / "nowhere")},
        PERFD: {"NCCL_PROFILER_PLUGIN": str(LIBRARY)},
    }
    if inspector is not None:
        found[INSPECTOR] = {
            "NCCL_PROFILER_PLUGIN": str(inspector),
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": str(folder / "inspector"),
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
        }
    return found


def main() -> int:
    """Run the job, print what was added, and return 1 when a mode has no result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--limit-s", type=float, default=400.0, help="what is done by then counts")
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--dry-run", action="store_true", help="a job for CPUs")
    args = parser.parse_args()
    inspector = inspector_library(args.python, os.environ.get("LD_LIBRARY_PATH", ""))
    folder: Path = args.out.resolve()
    folder.mkdir(parents=True)
    environments = _environments(folder, inspector)
    shape = _SMALL_SHAPE if args.dry_run else _SHAPE
    document = plan(list(environments), args.rounds, shape, environments) | {"port": free_port()}
    (folder / "plan.json").write_text(json.dumps(document))
    command = [
        *(sys.executable, "-m", "perfd", "run", "--no-nsys", "--out", str(folder / "out"), "--"),
        *(args.torchrun, "--nproc-per-node", str(args.gpus), str(JOB)),
        *("--plan", str(folder / "plan.json"), "--out", str(folder / "blocks.json")),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            process.wait(args.limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    blocks = folder / "blocks.json"
    told = json.loads(blocks.read_text()) if blocks.is_file() else []
    rounds = rounds_of(told, len(environments))
    if not rounds:
        print(f"No round was finished; see {folder}/log.", file=sys.stderr)
        return 1
    written = sum(
        path.read_bytes().count(b"\n") for path in (folder / "inspector").glob("*") if path.is_file()
    )
    result = {
        "schema": SCHEMA,
        "dry_run": args.dry_run,
        "inspector": None if inspector is None else str(inspector),
        "inspector_operations": written,
        "perfd_operations": sum(one[PERFD].recorded for one in rounds),
        "step_s": {mode: statistics.median(one[mode].step_s for one in rounds) for mode in environments},
        "small_all_reduce_s": {
            mode: statistics.median(one[mode].small_s for one in rounds) for mode in environments
        },
        "added": compared(rounds),
    }
    print(json.dumps(result, indent=1))
    recorded = args.dry_run or (result["perfd_operations"] and (inspector is None or written))
    return 0 if recorded else 1


if __name__ == "__main__":
    sys.exit(main())
