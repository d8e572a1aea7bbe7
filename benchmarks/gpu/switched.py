"""What perfd costs the processes of one job: switched off and on again between blocks of steps.

    python -m benchmarks.gpu.switched --out FOLDER [--gpus 2] [--rounds 40] [--torchrun PATH] [--dry-run]

Runs of one job differ by more than perfd costs (`overhead.py`), so here one job of `perfd run` has both: a
round is a block of steps with everything on and one with perfd's process stopped and its plugin idle, in
random order. What counts is a block's median step by CUDA events against the other's of its round, and the
time of one of many 16 KiB all-reduces in a row, for which the host decides: the most that it can cost.
Printed are medians over rounds with their bootstrapped 95% intervals. `--dry-run` is a job for CPUs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = "perfd.bench.gpu.switched/1"
JOB = Path(__file__).with_name("switched_job.py")
_RESAMPLES = 10_000
_SHAPE = {
    "layers": 12, "hidden": 2048, "sequence": 2048, "micro_batch": 4, "settling_steps": 6, "steps": 16,
    "small_all_reduces": 4000,
}  # fmt: skip
_SMALL_SHAPE = {
    "layers": 2, "hidden": 64, "sequence": 16, "micro_batch": 2, "settling_steps": 1, "steps": 3,
    "small_all_reduces": 20,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What both blocks of a round took, in seconds."""

    on_step_s: float
    off_step_s: float
    on_small_s: float
    off_small_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A median over rounds, and the interval that holds it with 95%."""

    median: float
    low: float
    high: float


def plan(rounds: int) -> list[bool]:
    """Whether perfd is on, block by block: each round both ways in random order, the first for warmth."""
    order = random.Random(1)
    return [on for _ in range(rounds + 1) for on in order.sample([True, False], 2)]


def rounds_of(reported: Sequence[Mapping[str, Any]]) -> list[Round]:
    """The blocks by round, without the first round and one that was cut."""
    pairs = [reported[at : at + 2] for at in range(2, len(reported) - 1, 2)]
    found = []
    for pair in pairs:
        on, off = sorted(pair, key=lambda block: not block["on"])
        found.append(
            Round(
                on_step_s=statistics.median(on["steps_s"]),
                off_step_s=statistics.median(off["steps_s"]),
                on_small_s=on["small_s"],
                off_small_s=off["small_s"],
            )
        )
    return found


def added(differences: Sequence[float], seed: int = 1) -> Added:
    """The median of differences by round, and its bootstrapped interval."""
    values = np.array(differences)
    chosen = np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[chosen], axis=1), [2.5, 97.5])
    return Added(median=float(np.median(values)), low=float(low), high=float(high))


def document(reported: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is printed. Raises `ValueError` without a whole round."""
    rounds = rounds_of(reported)
    if not rounds:
        raise ValueError("no round was finished")
    return {
        "rounds": len(rounds),
        "step_s": statistics.median(one.off_step_s for one in rounds),
        "small_all_reduce_s": statistics.median(one.off_small_s for one in rounds),
        "recorded_operations": sum(block["recorded"] for block in reported if block["on"]),
        "recorded_operations_off": sum(block["recorded"] for block in reported if not block["on"]),
        "added_step_ratio": asdict(added([one.on_step_s / one.off_step_s - 1 for one in rounds])),
        "added_small_all_reduce_s": asdict(added([one.on_small_s - one.off_small_s for one in rounds])),
    }


def main() -> int:
    """Run the job, print what was added, and return 1 when nothing was recorded or no round ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--limit-s", type=float, default=400.0, help="what is done by then counts")
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    parser.add_argument("--dry-run", action="store_true", help="a job for CPUs")
    args = parser.parse_args()
    folder: Path = args.out.resolve()
    folder.mkdir(parents=True)
    blocks = folder / "blocks.json"
    shape = _SMALL_SHAPE if args.dry_run else _SHAPE
    (folder / "plan.json").write_text(json.dumps({"shape": shape, "blocks": plan(args.rounds)}))
    command = [
        *(sys.executable, "-m", "perfd", "run", "--no-nsys", "--out", str(folder / "out"), "--"),
        *(args.torchrun, "--nproc-per-node", str(args.gpus), str(JOB)),
        *("--plan", str(folder / "plan.json"), "--out", str(blocks)),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            process.wait(args.limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    try:
        found = document(json.loads(blocks.read_text()))
    except (OSError, ValueError) as error:
        print(f"Nothing was measured ({error}); see {folder}/log.", file=sys.stderr)
        return 1
    print(json.dumps({"schema": SCHEMA, "dry_run": args.dry_run, **found}, indent=1))
    return 0 if args.dry_run or found["recorded_operations"] else 1


if __name__ == "__main__":
    sys.exit(main())
