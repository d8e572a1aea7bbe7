"""Faults in a real training job on 2 or more GPUs: is the rank named, and nobody when nothing is wrong.

    python -m benchmarks.gpu.faults --out FOLDER [--repeat 2] [--seed 1] [--limit-s 500]

Runs `train.py` under `perfd run` once for each case, in random order, with clean runs in between. The
truth of a case is its fault and its rank; how much the fault really costs is the median step by CUDA
events, against the clean runs of the same session. A case that costs less than 2 % is not counted: the
host had time to spare.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
STEPS = 90
WARM_UP_STEPS = 15
LEAST_COST = 0.02

CASES = (
    ("slow_rank", 40.0), ("slow_rank", 80.0), ("slow_rank", 160.0),
    ("slow_loader", 0.1), ("forced_sync", 0.02), ("tiny_kernels", 0.2), ("late_entry", 0.1),
    ("slow_loaders", 0.1),
)  # fmt: skip
BLAMELESS = frozenset({"none", "slow_loaders"})
"""Cases in which no single rank is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run, its truth and what perfd said."""

    fault: str
    strength: float
    rank: int | None
    step_s: float
    kind: str
    culprits: list[Any]
    lost_ratio: float | None
    evidence: list[str]


def run_case(fault: str, strength: float, rank: int, gpus: int, folder: Path) -> Outcome | None:
    """Train once under perfd; None when the job failed."""
    folder.mkdir(parents=True)
    times = folder / "times.json"
    command = [
        *(sys.executable, "-m", "perfd", "run", "--no-nsys", "--job", "faults", "--out", str(folder), "--"),
        *(
            "torchrun",
            "--nproc-per-node",
            str(gpus),
            str(TRAIN),
            "--steps",
            str(STEPS),
            "--times",
            str(times),
        ),
        *("--fault", fault, "--fault-strength", str(strength), "--fault-rank", str(rank)),
    ]
    with (folder / "log").open("wb") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=120).returncode
    found = sorted(folder.glob("*/summary.json"))
    if code != 0 or not found or not times.is_file():
        print(f"{fault} {strength}: the job ended with {code}; see {folder}/log", file=sys.stderr)
        return None
    verdict = json.loads(found[-1].read_text())["jobs"][0]["bottleneck"]
    return Outcome(
        fault=fault,
        strength=strength,
        rank=None if fault in BLAMELESS else rank,
        step_s=statistics.median(json.loads(times.read_text())[WARM_UP_STEPS:]),
        kind=verdict["kind"],
        culprits=[culprit["id"] for culprit in verdict["culprits"]],
        lost_ratio=verdict["lost_ratio"],
        evidence=verdict["evidence"],
    )


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927)."""
    if not trials:
        return (0.0, 1.0)
    p = successes / trials
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return (max(0.0, middle - half), min(1.0, middle + half))


def report(outcomes: list[Outcome]) -> None:
    """Print each run, then detection and false alarms with their intervals."""
    clean_s = statistics.median(outcome.step_s for outcome in outcomes if outcome.fault == "none")
    print(f"clean step {clean_s * 1e3:.2f} ms")
    found = named = false_alarms = blameless = 0
    for outcome in outcomes:
        cost = outcome.step_s / clean_s - 1
        right = outcome.culprits == ([] if outcome.rank is None else [outcome.rank])
        counted = outcome.rank is None or cost >= LEAST_COST
        lost = "-" if outcome.lost_ratio is None else f"{outcome.lost_ratio:.1%}"
        rank = "-" if outcome.rank is None else outcome.rank
        print(
            f"{outcome.fault:13} {outcome.strength:7g} rank {rank}: "
            f"costs {cost:6.1%}, said {outcome.kind} {outcome.culprits} lost {lost}"
            f"{'' if not counted else '  right' if right else '  WRONG'}"
        )
        if outcome.rank is None:
            blameless += 1
            false_alarms += not right
        elif counted:
            found += 1
            named += right
    low, high = wilson(named, found)
    print(f"named the rank in {named} of {found} (95 % interval {low:.2f} to {high:.2f})")
    low, high = wilson(false_alarms, blameless)
    print(f"false alarms in {false_alarms} of {blameless} (95 % interval {low:.2f} to {high:.2f})")


def main() -> None:
    """Run the cases until they are done or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=500.0)
    args = parser.parse_args()
    order = random.Random(args.seed)
    cases = [(fault, strength, order.randrange(args.gpus)) for fault, strength in CASES * args.repeat]
    order.shuffle(cases)
    # A clean run first, and then after every second case.
    plan = [("none", 0.0, 0)]
    for number, case in enumerate(cases):
        plan += [case] if number % 2 else [case, ("none", 0.0, 0)]
    deadline = time.monotonic() + args.limit_s
    outcomes: list[Outcome] = []
    longest_s = 0.0
    for number, (fault, strength, rank) in enumerate(plan):
        started = time.monotonic()
        if started + longest_s > deadline:
            print(f"The time is up after {number} of {len(plan)} runs.")
            break
        outcome = run_case(fault, strength, rank, args.gpus, args.out / f"{number:02}-{fault}")
        longest_s = max(longest_s, time.monotonic() - started)
        if outcome is not None:
            outcomes.append(outcome)
    (args.out / "outcomes.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    report(outcomes)


if __name__ == "__main__":
    main()
