"""How long it takes from a fault's onset to the first alert about it, over recorded runs.

    python -m benchmarks.alert_onset [FOLDER ...] [--tick 1] [--json]

A FOLDER is a recorded run, or holds some (default: benchmarks/gpu/recorded). The truth of a run is beside its
recording: `case.json`, with a log that has the moment when the fault began (`[fault] UNIX_TIME`), or
`truth.json`, with phases of several faults and of none. A run is replayed with a round and an evaluation of
the shipped rules every `--tick` seconds, as live. The first alert that fires in a fault's time, or within
five seconds after its end, counts as the one about it. What fires at other times, or in a run without a
truth, is a false alert, and what fires twice outside of faults flaps. Not judged are alerts after the last
phase of a run that was killed, of which the truth says nothing: a fault may have begun, or the job hung.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu.fault_runs import case_of, cost_ratio_of
from benchmarks.gpu.random_jobs import RANDOM_JOBS
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import SessionConfig

SCHEMA = "perfd.bench.alert_onset/1"
RECORDED = Path(__file__).parent / "gpu" / "recorded"
_LEAST_COST_RATIO = 0.10
"""By how much a fault must make steps longer to be one that has to be found in time."""
_IN_TIME_S, _IN_TIME_STEPS = 5.0, 3
_PERIODIC, _STALL_PERIOD_STEPS = frozenset({"forced_sync", "stall", "garbage"}), 5
"""Faults of every fifth step, which have three periods' time."""
_EFFICIENCY = frozenset({
    "PerfdMfuTrouble", "PerfdMfuCommunicationBound", "PerfdCommunicationShare", "PerfdOptimizerShare",
    "PerfdPipelineStall", "PerfdPipelineExcess", "PerfdWaiting",
})  # fmt: skip
"""About how a job was set up, whether healthy or not: listed by run, and neither an onset nor false."""
_TRUTH = {"dp4_slow2": ("PerfdStraggler",)}
"""Alerts that recordings without `case.json` should have; README.md beside them says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a run, and the time in which it lasted."""

    kind: str
    begin_unix_s: float
    end_unix_s: float
    step_s: float | None
    """The step with it; None of a run that never ended."""
    cost_ratio: float | None
    """By how much steps are longer with it."""

    @property
    def limit_s(self) -> float:
        """How long an alert may take: five seconds or three steps, of a periodic stall three periods."""
        periodic = self.kind in _PERIODIC
        steps = _IN_TIME_STEPS * (_STALL_PERIOD_STEPS if periodic else 1)
        return max(_IN_TIME_S, steps * (self.step_s or 0.0))

    @property
    def due(self) -> bool:
        """Whether an alert has to come."""
        return (self.cost_ratio or 0.0) >= _LEAST_COST_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """A fault, and when its first alert came."""

    fault: Fault
    alerted_after_s: float | None
    first_alert: str | None

    @property
    def in_time(self) -> bool:
        """Whether it came soon enough."""
        return self.alerted_after_s is not None and self.alerted_after_s <= self.fault.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A replayed run with what was raised in it."""

    name: str
    onsets: tuple[Onset, ...]
    false_alerts: tuple[str, ...]
    efficiency: tuple[str, ...]
    """Alerts about how the job is set up."""

    @property
    def flapping(self) -> tuple[str, ...]:
        """False alerts that came more than once."""
        names = self.false_alerts
        return tuple(sorted({name for name in names if names.count(name) > 1}))


def measure(folder: Path, tick_s: float) -> Run:
    """Replay one run."""
    recording = folder / "recording" if (folder / "recording").is_dir() else folder
    faults = _faults(folder)
    every = _alerts(recording, tick_s)
    right = {*_EFFICIENCY, *_TRUTH.get(folder.name, ()), *_of_arguments(folder.name)}
    fired = sorted(
        (float(one["fired_at_unix_s"]), str(one["name"])) for one in every if one["name"] not in right
    )
    onsets, about = [], set(_explained(folder, fired))
    for fault, following in pairwise([*faults, None]):
        next_unix_s = following.begin_unix_s if following else math.inf
        until_unix_s = min(next_unix_s, fault.end_unix_s + _IN_TIME_S)
        mine = [one for one in fired if fault.begin_unix_s <= one[0] < until_unix_s]
        about.update(mine)
        first = mine[0] if mine else None
        onsets.append(
            Onset(
                fault=fault,
                alerted_after_s=first[0] - fault.begin_unix_s if first else None,
                first_alert=first[1] if first else None,
            )
        )
    return Run(
        name=folder.name,
        onsets=tuple(onsets),
        false_alerts=tuple(name for at, name in fired if (at, name) not in about),
        efficiency=tuple(sorted({one["name"] for one in every if one["name"] in _EFFICIENCY})),
    )


def _faults(folder: Path) -> list[Fault]:
    if (folder / "truth.json").is_file():
        phases = json.loads((folder / "truth.json").read_text())["phases"]
        return [_of_phase(one) for one in phases if one["phase"]["kind"] != "healthy"]
    if not (folder / "case.json").is_file() or (case := case_of(folder)).fault == "none":
        return []
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    said = re.search(r"^\[fault\] ([\d.]+)", log, re.MULTILINE)
    if said is None:
        return []
    return [
        Fault(
            kind=case.fault,
            begin_unix_s=float(said.group(1)),
            end_unix_s=math.inf,
            step_s=_step_s(folder),
            cost_ratio=cost_ratio_of(folder),
        )
    ]


def _explained(folder: Path, fired: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Of alerts with their Unix times, those that no fault explains and the truth does, or leaves open.

    A healthy phase with ranks is one of a job that gives these more work than others.
    """
    if not (folder / "truth.json").is_file():
        return
    truth = json.loads((folder / "truth.json").read_text())
    phases = truth["phases"]
    known_until_unix_s = phases[-1]["end_unix_s"] if truth.get("killed") else math.inf
    uneven = [one for one in phases if one["phase"]["kind"] == "healthy" and one["phase"]["ranks"]]
    for at, name in fired:
        late_all_along = any(one["begin_unix_s"] <= at < one["end_unix_s"] for one in uneven)
        if at >= known_until_unix_s or (name == "PerfdStraggler" and late_all_along):
            yield at, name


def _of_phase(document: dict[str, Any]) -> Fault:
    step_s, healthy_s = document["step_s"], document["healthy_step_s"]
    return Fault(
        kind=document["phase"]["kind"],
        begin_unix_s=document["begin_unix_s"],
        end_unix_s=document["end_unix_s"],
        step_s=step_s,
        cost_ratio=step_s / healthy_s - 1 if step_s and healthy_s else None,
    )


def _of_arguments(name: str) -> Collection[str]:
    """Alerts that a drawn job asks for itself: with `--manual-gc` all ranks stall every ten steps."""
    job = RANDOM_JOBS.get(name)
    return ("PerfdPeriodicStall",) if job is not None and "--manual-gc" in job.megatron else ()


def _alerts(recording: Path, tick_s: float) -> Sequence[dict[str, Any]]:
    config = SessionConfig()
    aggregator = msgspec.structs.replace(
        config.aggregator, rules=msgspec.structs.replace(config.aggregator.rules, interval_s=tick_s)
    )
    options = ReplayOptions(
        recording=recording,
        allow_missing=True,
        tick_s=tick_s,
        config=msgspec.structs.replace(config, aggregator=aggregator),
    )
    return [dict(alert) for alert in replay(options).alerts]


def _step_s(folder: Path) -> float | None:
    times = folder / "times.json"
    if not times.is_file():
        return None
    document = json.loads(times.read_text())
    return statistics.median(document["seconds"][document["fault_from"] :])


def _runs(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if (folder / "recording.json").is_file() or (folder / "recording").is_dir():
            yield folder
        else:
            yield from (one for one in sorted(folder.iterdir()) if one.is_dir())


def _report(runs: Sequence[Run]) -> str:
    due = [onset for run in runs for onset in run.onsets if onset.fault.due]
    alerted = sorted(onset.alerted_after_s for onset in due if onset.alerted_after_s is not None)
    lines = [line for run in runs for line in _describe(run)]
    lines += [
        "",
        f"runs {len(runs)}; faults that lengthen steps by {_LEAST_COST_RATIO:.0%} or more {len(due)}",
        f"alerted in time {sum(onset.in_time for onset in due)}, at all {len(alerted)}",
    ]
    if len(alerted) > 1:
        p95_s = statistics.quantiles(alerted, n=20, method="inclusive")[-1]
        p50_s = statistics.median(alerted)
        lines.append(f"onset to alert: p50 {p50_s:.1f} s, p95 {p95_s:.1f} s, max {alerted[-1]:.1f} s")
    lines.append(f"runs with a false alert {sum(bool(run.false_alerts) for run in runs)}")
    lines.append(f"runs in which an alert flaps {sum(bool(run.flapping) for run in runs)}")
    return "\n".join(lines)


def _describe(run: Run) -> Iterator[str]:
    parts = [
        ", ".join(names)
        for names in (
            run.efficiency,
            [f"false: {name}" for name in run.false_alerts],
            [f"flaps: {name}" for name in run.flapping],
        )
        if names
    ]
    yield f"{run.name}: {'; '.join(parts) or 'no other alert'}"
    for onset in run.onsets:
        cost = "unknown cost" if onset.fault.cost_ratio is None else f"steps {onset.fault.cost_ratio:+.1%}"
        after = (
            "no alert"
            if onset.alerted_after_s is None
            else f"{onset.first_alert} after {onset.alerted_after_s:.1f} s"
        )
        late = " (late)" if onset.fault.due and not onset.in_time else ""
        yield f"    {onset.fault.kind}, {cost}: {after}{late}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[RECORDED])
    parser.add_argument("--tick", type=float, default=1.0, help="seconds of the recording between two rounds")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    runs = [measure(folder, args.tick) for folder in _runs(args.folders)]
    if args.json:
        print(json.dumps({"schema": SCHEMA, "runs": [asdict(run) for run in runs]}))
    else:
        print(_report(runs))


if __name__ == "__main__":
    main()
