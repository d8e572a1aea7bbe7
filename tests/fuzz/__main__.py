"""Feeds mutated inputs to each reader: `python -m tests.fuzz [--seconds 60] [--seed 1] [TARGET ...]`.

What a reader raises beside its own refusals, and what takes over a second, is printed and kept in a file.
"""

# ruff: noqa: T201  (a command)
from __future__ import annotations

import argparse
import hashlib
import logging
import math
import resource
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import Target, targets

_SLOW_S = 1.0


@dataclass(slots=True)
class Outcome:
    """What came of the inputs of one reader."""

    tried: int = 0
    failed: int = 0
    slowest_s: float = 0.0
    """CPU time."""


def fuzz(name: str, target: Target, seconds: float, most: float, seed: int, keep_in: Path) -> Outcome:
    """Feed mutated inputs, `most` at most."""
    chance, outcome, seen = Random(seed), Outcome(), set()
    until_s = time.monotonic() + seconds
    while outcome.tried < most and time.monotonic() < until_s:
        data = mutated(chance.choice(target.corpus), chance, target.corpus)
        outcome.tried += 1
        started_s = time.process_time()
        try:
            target.run(data)
        except target.refusals:
            problem = ""
        except Exception as error:  # noqa: BLE001  (that is what is looked for)
            place = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}"
        else:
            problem = ""
        took_s = time.process_time() - started_s
        outcome.slowest_s = max(outcome.slowest_s, took_s)
        if not problem and took_s > _SLOW_S:
            problem = f"{took_s:.1f} s of CPU time"
        if problem:
            outcome.failed += 1
        if problem and problem.split(" s of")[0] not in seen:
            seen.add(problem.split(" s of")[0])
            kept = keep_in / f"{name}.{hashlib.sha256(data).hexdigest()[:8]}.in"
            kept.write_bytes(data)
            print(f"{name}: {problem}; the input is {kept}", flush=True)
    return outcome


def main() -> int:
    """Returns 1 when an input failed."""
    known = targets()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument(
        "--inputs", type=float, default=math.inf, help="per target at most: the same ones each time"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-in", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("targets", nargs="*", choices=[*known, []], metavar="TARGET")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    args.keep_in.mkdir(exist_ok=True)
    chosen = args.targets or list(known)
    total = failures = 0
    for name in chosen:
        outcome = fuzz(name, known[name], args.seconds / len(chosen), args.inputs, args.seed, args.keep_in)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            f"{name}: {outcome.tried:,} inputs, {outcome.failed} failed, slowest {outcome.slowest_s:.3f} s, "
            f"peak {peak_bytes / 1e6:.0f} MB",
            flush=True,
        )
        total, failures = total + outcome.tried, failures + outcome.failed
    print(f"{total:,} inputs, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
