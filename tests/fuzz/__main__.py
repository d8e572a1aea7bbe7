"""Feeds mutated inputs to each reader: `python -m tests.fuzz [--seconds 60] [--seed 1] [TARGET ...]`.

What a reader raises beside its own refusals, and what takes over a second, is printed and kept in a file.
A process per core feeds one reader after the other.
"""

# ruff: noqa: T201  (a command)
from __future__ import annotations

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.fuzzing import Budget, fuzz, known_targets


def main() -> int:
    """Returns 1 when an input failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument(
        "--inputs", type=float, default=math.inf, help="per target at most: the same ones each time"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-in", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("targets", nargs="*", choices=[*known_targets(), []], metavar="TARGET")
    args = parser.parse_args()
    args.keep_in.mkdir(exist_ok=True)
    chosen = args.targets or list(known_targets())
    processes = min(len(os.sched_getaffinity(0)), len(chosen))
    budget = Budget(seconds=args.seconds * processes / len(chosen), inputs=args.inputs, seed=args.seed)
    total = failures = 0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        outcomes = pool.map(partial(fuzz, budget=budget, keep_in=args.keep_in), chosen)
        for name, outcome in zip(chosen, outcomes, strict=True):
            print(
                f"{name}: {outcome.tried:,} inputs, {outcome.failed} failed, "
                f"slowest {outcome.slowest_s:.3f} s, peak {outcome.peak_bytes / 1e6:.0f} MB",
                flush=True,
            )
            total, failures = total + outcome.tried, failures + outcome.failed
    print(f"{total:,} inputs, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
