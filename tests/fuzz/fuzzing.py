"""Feeds mutated inputs to one reader, and keeps those that fail with other errors than its own."""

# ruff: noqa: T201  (for a command)
from __future__ import annotations

import hashlib
import logging
import resource
import time
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import targets

_SLOW_S = 1.0
known_targets = cache(targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long and with how many inputs each reader is tested."""

    seconds: float
    inputs: float
    """The maximum; infinity for no limit."""
    seed: int


@dataclass(slots=True)
class Outcome:
    """The results of one reader."""

    tried: int = 0
    failed: int = 0
    slowest_s: float = 0.0
    """CPU time of the slowest input."""
    peak_bytes: int = 0
    """The peak memory of its process so far."""


def fuzz(name: str, budget: Budget, keep_in: Path) -> Outcome:
    """Feed mutated inputs to the reader of this name; the same seed gives the same inputs."""
    logging.disable(logging.CRITICAL)
    target = known_targets()[name]
    chance, outcome, seen = Random(budget.seed), Outcome(), set()
    until_s = time.monotonic() + budget.seconds
    while outcome.tried < budget.inputs and time.monotonic() < until_s:
        data = mutated(chance.choice(target.corpus), chance, target.corpus)
        outcome.tried += 1
        started_s = time.process_time()
        try:
            target.run(data)
        except target.refusals:
            problem = ""
        except Exception as error:  # noqa: BLE001  (these are the failures to find)
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
    outcome.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome
