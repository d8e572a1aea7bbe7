"""What each phase of a job with switched faults really cost, from what the job itself wrote.

    python -m benchmarks.gpu.phase_truth FOLDER ...

computes the costs in each `truth.json` below the folders anew, from the lengths of all steps in it, and
prints those that change.

A phase's cost is what its steps would gain without the fault: one minus the healthy step over the step of the
phase, where the healthy step is the mean of the medians of the healthy phases before and after it. Steps of a
stalling rank and of slow data are averaged instead, since they are uneven: four of five have no stall. Pauses
that the job makes without a fault too, such as checkpoints, are left out of that mean.
`spread_ratio` is half of the distance between both healthy phases, relative to the healthy step: the cost is
not known better than that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.phases import Phase, load

_WARMUP_STEPS = 4
"""The first steps compile and allocate."""
_STALLS = frozenset({"stall", "garbage"})
"""Of these, single long steps are the fault."""
_PAUSE_STEPS = 10.0
"""Times the usual step, which one with a checkpoint or an evaluation takes at least in a healthy phase.
Chosen."""
_SETTLING_STEPS = 1
"""The first step after a fault still ends its work."""
_FEWEST_STEPS = 5
"""Of a phase in which the job was ended, for it to have a truth: one of five has a stall."""
_UNEVEN = frozenset({"stall", "garbage", "storage", "decoding", "loader", "host", "busy", "crowded"})
"""Two workers that begin together end together, so that every second step waits for both batches; and a host
that sleeps is ahead of its GPU until it has to wait for that, so that single steps take all of its delay."""
_COSTS = ("step_s", "healthy_step_s", "lost_ratio", "spread_ratio")
"""Fields of a `PhaseTruth` that follow from the lengths of steps."""
_ROUNDED = 1e-4
"""Of a step, by which a cost changes at most because lengths are stored in whole microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTruth:
    """One phase of a job, and what was measured in it by the job."""

    phase: Phase
    begin_unix_s: float
    end_unix_s: float
    step_s: float
    """Median; of hosts that stall, sleep or wait for data the mean."""
    healthy_step_s: float | None = None
    """Of the healthy phases around; None of a healthy phase."""
    lost_ratio: float | None = None
    """What a step would gain without the fault; None of a healthy phase."""
    spread_ratio: float | None = None
    added_gpu_s: float | None = None
    """Of a step, on the GPU of the first rank with the fault."""
    added_host_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a job, the first at index 0."""

    begin_unix_s: Sequence[float]
    """One more than steps: the last is the end."""
    seconds: Sequence[float]
    """By CUDA events where the job lived to read them."""
    killed: bool = False
    """Whether it did not reach the end of its last step, which is left out."""


def write_truth(folder: Path) -> Path:
    """Write `truth.json` of a job whose `plan.json` and `truth/` are in this folder; the path.

    It has `name`, `steps_s` and `phases`, each a `PhaseTruth`; `killed` if a step had begun that is not in
    `steps_s`. Raises `OSError` without what the job wrote.
    """
    steps = read_steps(folder / "truth")
    phases = measure(load(folder / "plan.json"), steps, folder / "truth")
    document = {
        "name": folder.name,
        "phases": [asdict(phase) for phase in phases],
        "steps_s": [round(seconds, 6) for seconds in steps.seconds],
        **({"killed": True} if steps.killed else {}),
    }
    path = folder / "truth.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def computed_anew(document: dict[str, Any]) -> dict[str, Any]:
    """What `write_truth` wrote, with costs by the rule of this version."""
    seconds = document["steps_s"]
    plan = [Phase(**{**one["phase"], "ranks": tuple(one["phase"]["ranks"])}) for one in document["phases"]]
    measured = measure(plan, Steps(begin_unix_s=[0.0] * (len(seconds) + 1), seconds=seconds))
    costs = [{name: getattr(one, name) for name in _COSTS} for one in measured]
    return {
        **document,
        "phases": [{**one, **cost} for one, cost in zip(document["phases"], costs, strict=True)],
    }


def read_steps(truth: Path) -> Steps:
    """The steps as rank 0 saw them."""
    rows = _rows(truth, 0)
    killed = "end_unix_s" not in rows[-1]
    begin = [row["begin_unix_s"] for row in rows] + ([] if killed else [rows[-1]["end_unix_s"]])
    marks = truth / "truth-gpu-rank0.json"
    seconds = (
        json.loads(marks.read_text())["steps_s"]
        if marks.is_file()
        else [after - before for before, after in itertools.pairwise(begin)]
    )
    return Steps(begin_unix_s=begin, seconds=seconds, killed=killed)


def measure(plan: Sequence[Phase], steps: Steps, truth: Path | None = None) -> list[PhaseTruth]:
    """Each phase that the job reached, the one in which it was ended until there."""
    cut = [replace(phase, last_step=min(phase.last_step, len(steps.seconds))) for phase in plan]
    reached = [
        one
        for one, planned in zip(cut, plan, strict=True)
        if one == planned or len(_of_phase(one, steps)) >= _FEWEST_STEPS
    ]
    pause_s = _pause_s(reached, steps)
    typical = [_typical_s(phase, steps, pause_s) for phase in reached]
    found = []
    for at, phase in enumerate(reached):
        times = {
            "begin_unix_s": steps.begin_unix_s[phase.first_step - 1],
            "end_unix_s": steps.begin_unix_s[phase.last_step],
        }
        around = [typical[near] for near in (at - 1, at + 1) if 0 <= near < len(reached)]
        if phase.kind == "healthy" or not around:
            found.append(PhaseTruth(phase=phase, step_s=typical[at], **times))
            continue
        healthy_s = statistics.mean(around)
        found.append(
            PhaseTruth(
                phase=phase,
                step_s=typical[at],
                healthy_step_s=healthy_s,
                lost_ratio=1 - healthy_s / typical[at],
                spread_ratio=(max(around) - min(around)) / 2 / healthy_s,
                added_gpu_s=_added_gpu_s(truth, phase) if truth else None,
                added_host_s=_added_host_s(truth, phase) if truth else None,
                **times,
            )
        )
    return found


def _of_phase(phase: Phase, steps: Steps) -> Sequence[float]:
    first = phase.first_step
    if first == 1:
        first += _WARMUP_STEPS
    elif phase.kind == "healthy":
        first += _SETTLING_STEPS
    return steps.seconds[first - 1 : phase.last_step]


def _pause_s(reached: Sequence[Phase], steps: Steps) -> float:
    """From which length on a step is one of the job's own pauses; infinite for a job without any."""
    healthy = [one for phase in reached if phase.kind == "healthy" for one in _of_phase(phase, steps)]
    usual_s = statistics.median(healthy) if healthy else math.inf
    return min((one for one in healthy if one >= _PAUSE_STEPS * usual_s), default=math.inf) / 2


def _typical_s(phase: Phase, steps: Steps, pause_s: float) -> float:
    seconds = _of_phase(phase, steps)
    if phase.kind not in _UNEVEN:
        return statistics.median(seconds)
    if phase.kind in _STALLS:
        return statistics.mean(seconds)
    return statistics.mean([one for one in seconds if one < pause_s] or seconds)


def _added_gpu_s(truth: Path, phase: Phase) -> float | None:
    path = truth / f"truth-gpu-rank{min(phase.ranks, default=0)}.json"
    if not path.is_file():
        return None
    added = json.loads(path.read_text())["added_gpu_s"]
    numbers = range(phase.first_step, phase.last_step + 1)
    return statistics.mean(added.get(str(step), 0.0) for step in numbers)


def _added_host_s(truth: Path, phase: Phase) -> float:
    rows = _rows(truth, min(phase.ranks, default=0))
    return statistics.mean(row["host_s"] for row in rows[phase.first_step - 1 : phase.last_step])


def _rows(truth: Path, rank: int) -> list[dict[str, float]]:
    return [json.loads(line) for line in (truth / f"truth-rank{rank}.jsonl").read_text().splitlines()]


def _both(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return zip(document["phases"], computed_anew(document)["phases"], strict=True)


def _changed(job: Path, stored: dict[str, Any], anew: dict[str, Any]) -> dict[str, Any]:
    """The phase with the newer costs, shown if they differ."""
    before, after = stored["lost_ratio"], anew["lost_ratio"]
    if before is None or abs(after - before) < _ROUNDED:
        return stored
    print(f"{job}: {anew['phase']['kind']} costs {after:.1%}, was {before:.1%}")
    return anew


def main(argv: Sequence[str] | None = None) -> int:
    """Compute stored truths anew, and print what changes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    folders = parser.parse_args(argv).folders
    for path in sorted(found for folder in folders for found in folder.rglob("truth.json")):
        document = json.loads(path.read_text())
        phases = [_changed(path.parent, *both) for both in _both(document)]
        path.write_text(json.dumps({**document, "phases": phases}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
