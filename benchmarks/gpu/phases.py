"""A job whose faults are switched on and off: phases of steps, each healthy or with one fault.

One start of a job serves many runs: between two faults the job is healthy for some steps, so that each fault
is measured against its own neighbors. Sizes are fractions of the job's own healthy step, measured by the job
before the first fault, so that one plan fits models of any size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

KINDS = (
    *("healthy", "gpu", "host", "stall", "garbage", "loader", "storage", "decoding"),
    *("busy", "crowded", "copying", "emptied"),
)
STALL_PERIOD_STEPS = 5
"""A stalling rank stops at every fifth step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps `first_step` to `last_step`, counted from 1, and what is wrong in them."""

    kind: str
    """`gpu`: more matrix products in each micro-batch. `host`: a sleep in each micro-batch. `stall`: a sleep
    of `size` seconds at every fifth step. `garbage`: Python's collector runs at every fifth step, over `size`
    million objects. `loader`: the next batch comes late. `storage` and `decoding`:
    the loader's workers wait, or compute, for `size` seconds for each sample, on all ranks. `busy`: as
    `host`, but the CPU computes. `crowded`: all threads share a core with `size` busy processes.
    `copying`: copies to the GPU in each micro-batch. `emptied`: freed memory of the GPU is given back in each
    micro-batch."""
    first_step: int
    last_step: int
    ranks: tuple[int, ...] = ()
    """Empty for all ranks."""
    size: float = 0.0
    """Added time as a fraction of the healthy step; seconds for `stall`, `storage`, `decoding`; millions
    of objects for `garbage`, processes for `crowded`."""

    def holds(self, rank: int) -> bool:
        """Whether this rank is one of those with the fault."""
        return self.kind != "healthy" and (not self.ranks or rank in self.ranks)

    def stalls_at(self, step: int) -> bool:
        """Whether a rank with this fault stops in this step."""
        return self.kind in {"stall", "garbage"} and (step - self.first_step) % STALL_PERIOD_STEPS == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is switched on for `steps` steps."""

    kind: str
    size: float
    ranks: tuple[int, ...] = ()
    steps: int = 12


def phases(
    faults: Sequence[Fault], *, warmup_steps: int = 16, healthy_steps: int = 8, tail_steps: int = 10
) -> list[Phase]:
    """Healthy steps, then each fault followed by healthy steps."""
    found = [Phase(kind="healthy", first_step=1, last_step=warmup_steps)]
    for at, fault in enumerate(faults):
        first = found[-1].last_step + 1
        found.append(
            Phase(
                kind=fault.kind,
                first_step=first,
                last_step=first + fault.steps - 1,
                ranks=fault.ranks,
                size=fault.size,
            )
        )
        length = tail_steps if at == len(faults) - 1 else healthy_steps
        last = found[-1].last_step
        found.append(Phase(kind="healthy", first_step=last + 1, last_step=last + length))
    return found


def slow_data(kind: str, sample_s: float, *, steps: int, healthy_steps: int) -> list[Phase]:
    """Data that comes too slowly from the first step on, then healthy steps to compare with."""
    last = steps + healthy_steps
    return [
        Phase(kind=kind, first_step=1, last_step=steps, size=sample_s),
        Phase(kind="healthy", first_step=steps + 1, last_step=last),
    ]


def save(plan: Sequence[Phase], path: Path) -> None:
    """Write a plan as JSON, for the job to read."""
    path.write_text(json.dumps([asdict(phase) for phase in plan], indent=1) + "\n")


def load(path: Path) -> list[Phase]:
    """Read what `save` wrote."""
    return [Phase(**{**one, "ranks": tuple(one["ranks"])}) for one in json.loads(path.read_text())]


def phase_at(plan: Sequence[Phase], step: int) -> Phase | None:
    """The phase of a step; None after the last."""
    return next((phase for phase in plan if phase.first_step <= step <= phase.last_step), None)


def faulty(plan: Sequence[Phase]) -> Iterator[Phase]:
    """The phases with a fault."""
    return (phase for phase in plan if phase.kind != "healthy")


def job_arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments of a job with such a plan: where plan and truth are, and the sizes of its model."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    return parser
