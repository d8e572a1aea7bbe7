"""Kinds of jobs and faults that no recording has, simulated, and what perfd says of each, look by look.

    python -m benchmarks.faults.kinds [NAME ...]

Each kind runs once with samples of GPUs and once without, in the world that nothing was tuned to. A line
shows from when to when (seconds since the job's start) a headline stood, all ranks that any finding blamed
then, and the least and the most of its gain. The exit code is 1 if a rank was blamed that is not to blame.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.faults.edge import JOB, Sent, batches
from benchmarks.faults.fault_kinds import KINDS, FaultKind
from benchmarks.faults.judge import LIVE, blamed_by, look
from benchmarks.faults.layouts import Effect, LayoutJob, Simulated
from benchmarks.faults.noise import held_out_world
from benchmarks.faults.scenario import Scenario
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state import Fleet
from perfd.model import GpuInfo, JobDescription, RankPlacement, Record, TrainingStep

_FIRST_LOOK_S = 5.0
_DESCRIBING = (JobDescription, GpuInfo, RankPlacement)


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
    for sent in _sent(kind, scenario):
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


def _sent(kind: FaultKind, scenario: Scenario) -> Iterator[Sent]:
    """What agents send, in order; an agent that begins late describes its node and ranks then."""
    trace = simulated(kind.effect, scenario).run()
    restart = kind.restart
    sent = batches(scenario, trace, restart.ends_s if restart else scenario.length_s)
    if restart is not None:
        again = replace(scenario, **restart.shape)
        done = sum(end <= restart.ends_s for end in trace.step_end_s)
        of_second = simulated(restart.effect, again).run()
        sent += batches(again, of_second, again.length_s, began_s=restart.begins_s, first_step=done)
    unsaid: dict[str, list[Record]] = {}
    for one in sent:
        if one.at_s >= kind.agent_from_s.get(one.node, 0.0):
            yield replace(one, records=(*unsaid.pop(one.node, ()), *one.records))
        else:
            described = [record for record in one.records if isinstance(record, _DESCRIBING)]
            unsaid.setdefault(one.node, []).extend(described)


def simulated(effect: Callable[[int, float], Effect], scenario: Scenario) -> Simulated:
    """The job, before it has run."""
    return (LayoutJob if scenario.in_dimensions else Simulated)(scenario, effect)


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
