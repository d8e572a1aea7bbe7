"""Kinds of jobs and faults that no recording has, simulated, and what perfd says of each, look by look.

    python -m benchmarks.faults.kinds [NAME ...]

Each kind runs once with samples of GPUs and once without, in the world that nothing was tuned to. A line
shows from when to when (seconds since the job's start) a headline stood, all ranks that any finding blamed
then, and the least and the most of its gain. The exit code is 1 if a rank was blamed that is not to blame.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.faults.edge import JOB, batches
from benchmarks.faults.judge import LIVE, blamed_by, look
from benchmarks.faults.noise import held_out_world
from benchmarks.faults.scenario import Scenario
from benchmarks.faults.simulation import Job
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state import Fleet
from perfd.analysis.data.job_data import Floats
from perfd.model import TrainingStep

_FIRST_LOOK_S = 5.0
_ONSET_S = 20.0


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step has that a healthy one has not; by rank, or the same for all."""

    longer: Floats | float = 0.0
    """All compute, as a share of it."""
    stall_s: Floats | float = 0.0
    """Before the step, with an idle GPU."""
    work_s: Floats | float = 0.0
    """Before the step, on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One job: what each step has, and who is to blame when."""

    effect: Callable[[int, float], Effect]
    """Of the step's number and the seconds since the job's start."""
    ranks: frozenset[int] = frozenset()
    until_s: float = np.inf
    """Until when they may be blamed; a fault is in the steps that are judged for some time after its end."""
    onset_s: float = _ONSET_S
    log_until_s: float = np.inf
    shape: Mapping[str, Any] = field(default_factory=dict)


def _of(ranks: Sequence[int], value: float, count: int = 8) -> Floats:
    return np.where(np.isin(np.arange(count), ranks), value, 0.0)


def _slow(*ranks: int, by: float, count: int = 8) -> Callable[[int, float], Effect]:
    return lambda _, now_s: Effect(_of(ranks, by, count) if now_s > _ONSET_S else 0.0)


def _uneven(number: int, least: float, most: float, count: int = 8) -> Floats:
    return np.random.default_rng(number).uniform(least, most, count)


KINDS: Mapping[str, FaultKind] = {
    "healthy": FaultKind(effect=lambda *_: Effect()),
    "loaders of all stop for 1.5 s every 50 steps": FaultKind(
        effect=lambda step, now_s: Effect(stall_s=1.5 if now_s > _ONSET_S and step % 50 == 0 else 0.0),
        shape={"length_s": 110.0},
    ),
    "loaders of all slow by 40%, unevenly": FaultKind(
        effect=lambda step, now_s: Effect(stall_s=_uneven(step, 0.06, 0.14) if now_s > _ONSET_S else 0.0)
    ),
    "rank 3 slow by 12%, rank 5 by 6%": FaultKind(
        effect=lambda _, now_s: Effect(_of([3], 0.12) + _of([5], 0.06) if now_s > _ONSET_S else 0.0),
        ranks=frozenset({3}),
    ),
    "ranks 2 and 5 slow by 20%": FaultKind(effect=_slow(2, 5, by=0.2), ranks=frozenset({2, 5})),
    "pipelines: ranks 1 and 6 slow by 25%": FaultKind(
        effect=_slow(1, 6, by=0.25),
        ranks=frozenset({1, 6}),
        shape={"data": 4, "stages": 2, "step_s": 0.5, "length_s": 90.0},
    ),
    "pipelines: rank 5 of four stages slow by 30%": FaultKind(
        effect=_slow(5, by=0.3),
        ranks=frozenset({5}),
        shape={"data": 2, "stages": 4, "step_s": 0.8, "length_s": 90.0},
    ),
    "steps grow by 10% a minute": FaultKind(
        effect=lambda _, now_s: Effect(0.1 * now_s / 60), shape={"length_s": 180.0}
    ),
    "power cap: rank 6 slow by 15% from the start": FaultKind(
        effect=lambda *_: Effect(_of([6], 0.15)), ranks=frozenset({6}), onset_s=0.0
    ),
    "heat: rank 4 slow by 25% for 20 s": FaultKind(
        effect=lambda _, now_s: Effect(_of([4], 0.25) if _ONSET_S < now_s < 2 * _ONSET_S else 0.0),
        ranks=frozenset({4}),
        until_s=52.0,
    ),
    "rack: all slow by 30% for 20 s": FaultKind(
        effect=lambda _, now_s: Effect(0.3 if _ONSET_S < now_s < 2 * _ONSET_S else 0.0)
    ),
    "generates texts for 6 s every 20 steps, hosts busy": FaultKind(
        effect=lambda step, _: Effect(stall_s=6.0 if step and step % 20 == 0 else 0.0),
        shape={"length_s": 120.0},
    ),
    "generates texts of random length every 20 steps": FaultKind(
        effect=lambda step, _: Effect(work_s=_uneven(step, 4, 6) if step and step % 20 == 0 else 0.0),
        shape={"length_s": 120.0},
    ),
    "each step another rank slow by 30%": FaultKind(
        effect=lambda step, now_s: Effect(
            _of([int(_uneven(step, 0, 8)[0])], 0.3) if now_s > _ONSET_S else 0.0
        )
    ),
    "rank 0 evaluates alone for 2 s every 40 steps": FaultKind(
        effect=lambda step, _: Effect(work_s=_of([0], 2.0) if step and step % 40 == 0 else 0.0),
        ranks=frozenset({0}),
        onset_s=0.0,
        shape={"length_s": 120.0},
    ),
    "rank 7 late in one of three steps": FaultKind(
        effect=lambda step, now_s: Effect(
            stall_s=_of([7], 0.1) if now_s > _ONSET_S and step % 3 == 0 else 0.0
        ),
        ranks=frozenset({7}),
    ),
    "one of two nodes slow by 12%": FaultKind(
        effect=_slow(*range(8, 16), by=0.12, count=16), shape={"data": 16, "length_s": 70.0}
    ),
    "the log stops at 30 s, rank 2 slow by 25% from then on": FaultKind(
        effect=lambda _, now_s: Effect(_of([2], 0.25) if now_s > 30 else 0.0),
        ranks=frozenset({2}),
        log_until_s=30.0,
    ),
    "two ranks, one slow by 12%": FaultKind(
        effect=_slow(1, by=0.12, count=2), ranks=frozenset({1}), shape={"data": 2}
    ),
}


class _Simulated(Job):
    def __init__(self, scenario: Scenario, kind: FaultKind) -> None:
        super().__init__(scenario)
        self._kind = kind

    def _pace(self, number: int, strength: float) -> Floats:
        effect = self._kind.effect(number, float(self.free.min()))
        return np.asarray(super()._pace(number, strength) * (1 + effect.longer))

    def _before(self, number: int, strength: float) -> tuple[Floats, Floats]:
        stall_s, work_s = super()._before(number, strength)
        effect = self._kind.effect(number, float(self.free.min()))
        return stall_s + effect.stall_s, work_s + effect.work_s


@dataclass(slots=True)
class _Run:
    """Looks in a row that say the same."""

    said: tuple[str, tuple[int, ...]]
    first_s: float
    last_s: float
    gains: list[float]


def watched(kind: FaultKind, *, gpu_samples: bool, seed: int) -> tuple[list[str], frozenset[int]]:
    """What was said when, a line each, and who was blamed wrongly."""
    shape = {"data": 8, "step_s": 0.25, "length_s": 80.0, **kind.shape}
    scenario = Scenario(seed=seed, world=held_out_world(), gpu_samples=gpu_samples, **shape)
    fleet, due_s = Fleet(Limits(), AggregatorCounters()), _FIRST_LOOK_S
    runs: list[_Run] = []
    wrongly: set[int] = set()
    for sent in batches(scenario, _Simulated(scenario, kind).run(), scenario.length_s):
        while sent.at_s >= due_s and JOB in fleet.jobs:
            summary = look(fleet, due_s, LIVE)
            blamed, head = blamed_by(summary.findings), summary.bottleneck
            wrongly |= blamed - (kind.ranks if kind.onset_s <= due_s < kind.until_s else frozenset())
            said = f"{head.kind.value} {head.culprit_names}".rstrip(), tuple(sorted(blamed))
            if not runs or runs[-1].said != said:
                runs.append(_Run(said, due_s, due_s, []))
            runs[-1].last_s = due_s
            runs[-1].gains += [] if head.gain_ratio is None else [head.gain_ratio]
            due_s += 1.0
        logged = sent.at_s <= kind.log_until_s
        records = [one for one in sent.records if logged or not isinstance(one, TrainingStep)]
        source = RecordSource(
            agent_id=sent.node, node=sent.node, sent_unix_s=sent.sent_unix_s, now_s=sent.at_s, late=False
        )
        fleet.apply(records, source)
    return [_line(run) for run in runs], frozenset(wrongly)


def _line(run: _Run) -> str:
    headline, blamed = run.said
    gain = f", saves {min(run.gains):.1%} to {max(run.gains):.1%}" if run.gains else ""
    return f"{run.first_s:.0f} to {run.last_s:.0f} s: {headline}, blamed: {list(blamed)}{gain}"


def main(argv: Sequence[str] | None = None) -> int:
    """Watch them and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only kinds whose name contains it")
    names = parser.parse_args(argv).names
    failed = False
    for name, kind in KINDS.items():
        if names and not any(one in name for one in names):
            continue
        for seed, gpu_samples in enumerate((True, False), 1):
            lines, wrongly = watched(kind, gpu_samples=gpu_samples, seed=seed)
            blamed = f"  BLAMED WRONGLY: {sorted(wrongly)}" if wrongly else ""
            print(f"{name}, {'with' if gpu_samples else 'without'} GPUs{blamed}")
            print("".join(f"  {line}\n" for line in lines), end="", flush=True)
            failed |= bool(wrongly)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
