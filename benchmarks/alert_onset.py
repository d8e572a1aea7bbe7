"""How long it takes from a fault's onset to the first alert about it, over recorded runs.

    python -m benchmarks.alert_onset [FOLDER ...] [--tick 1] [--json]

Each FOLDER holds runs of `benchmarks.gpu.faults` (default: benchmarks/gpu/recorded): a recording, `case.json`
with the fault and its rank, and a log that has the moment when the fault began (`[fault] UNIX_TIME`). A run
is replayed with a round and an evaluation of the shipped rules every `--tick` seconds, as live. The first
alert after the onset counts as the one about the fault. What fires before it, or in a run without a fault, is
a false alert, and what fires twice flaps. Recordings without `case.json` count as healthy.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu.fault_runs import case_of, cost_ratio_of
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import SessionConfig

SCHEMA = "perfd.bench.alert_onset/1"
RECORDED = Path(__file__).parent / "gpu" / "recorded"
_LEAST_COST_RATIO = 0.10
"""By how much a fault must make steps longer to be one that has to be found in time."""
_IN_TIME_S, _IN_TIME_STEPS = 5.0, 3
_EFFICIENCY = frozenset({
    "PerfdMfuTrouble", "PerfdMfuCommunicationBound", "PerfdCommunicationShare", "PerfdOptimizerShare",
    "PerfdPipelineStall", "PerfdPipelineExcess", "PerfdWaiting",
})  # fmt: skip
"""About how a job was set up, whether healthy or not: listed by run, and neither an onset nor false."""
_TRUTH = {"dp4_slow2": ("PerfdStraggler",)}
"""Alerts that recordings without `case.json` should have; README.md beside them says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """One run, and when its alerts came."""

    name: str
    fault: str
    cost_ratio: float | None
    """How much longer steps are with the fault; None without a fault, or where it is not known."""
    step_s: float | None
    """The median step after the onset."""
    alerted_after_s: float | None
    first_alert: str | None
    efficiency: tuple[str, ...]
    """Alerts about how the job is set up."""
    false_alerts: tuple[str, ...]
    flapping: tuple[str, ...]

    @property
    def due(self) -> bool:
        """Whether an alert has to come."""
        return self.fault != "none" and (self.cost_ratio or 0.0) >= _LEAST_COST_RATIO

    @property
    def in_time(self) -> bool:
        """Whether it came within three steps or five seconds, whichever is longer."""
        limit_s = max(_IN_TIME_S, _IN_TIME_STEPS * (self.step_s or 0.0))
        return self.alerted_after_s is not None and self.alerted_after_s <= limit_s


def measure(folder: Path, tick_s: float) -> Onset:
    """Replay one run."""
    recording = folder / "recording" if (folder / "recording").is_dir() else folder
    case = case_of(folder) if (folder / "case.json").is_file() else None
    fault = case.fault if case else "none"
    onset_unix_s = _onset_unix_s(folder) if fault != "none" else None
    every = _alerts(recording, tick_s)
    right = {*_EFFICIENCY, *_TRUTH.get(folder.name, ())}
    alerts = [alert for alert in every if alert["name"] not in right]
    after = [one for one in alerts if onset_unix_s is not None and one["fired_at_unix_s"] >= onset_unix_s]
    first = min(after, key=lambda alert: float(alert["fired_at_unix_s"]), default=None)
    times = Counter((alert["name"], str(sorted(alert["labels"].items()))) for alert in every)
    return Onset(
        name=folder.name,
        fault=fault,
        cost_ratio=cost_ratio_of(folder) if fault != "none" else None,
        step_s=_step_s(folder),
        alerted_after_s=first["fired_at_unix_s"] - onset_unix_s if first and onset_unix_s else None,
        first_alert=first["name"] if first else None,
        efficiency=tuple(sorted({one["name"] for one in every if one["name"] in _EFFICIENCY})),
        false_alerts=tuple(sorted(one["name"] for one in alerts if one not in after)),
        flapping=tuple(sorted(name for (name, _), count in times.items() if count > 1)),
    )


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


def _onset_unix_s(folder: Path) -> float | None:
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    said = re.search(r"^\[fault\] ([\d.]+)", log, re.MULTILINE)
    return float(said.group(1)) if said else None


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


def _report(runs: Sequence[Onset]) -> str:
    due = [run for run in runs if run.due]
    alerted = sorted(run.alerted_after_s for run in due if run.alerted_after_s is not None)
    lines = [f"{run.name}: {_describe(run)}" for run in runs]
    lines += [
        "",
        f"runs {len(runs)}, with a fault of {_LEAST_COST_RATIO:.0%} of a step or more {len(due)}",
        f"alerted in 5 s or 3 steps {sum(run.in_time for run in due)}, at all {len(alerted)}",
    ]
    if len(alerted) > 1:
        p95_s = statistics.quantiles(alerted, n=20, method="inclusive")[-1]
        p50_s = statistics.median(alerted)
        lines.append(f"onset to alert: p50 {p50_s:.1f} s, p95 {p95_s:.1f} s, max {alerted[-1]:.1f} s")
    lines.append(f"runs with a false alert {sum(bool(run.false_alerts) for run in runs)}")
    lines.append(f"runs in which an alert flaps {sum(bool(run.flapping) for run in runs)}")
    return "\n".join(lines)


def _describe(run: Onset) -> str:
    cost = "" if run.cost_ratio is None else f", steps {run.cost_ratio:+.1%}"
    after = (
        "no alert"
        if run.alerted_after_s is None
        else f"{run.first_alert} after {run.alerted_after_s:.1f} s" + ("" if run.in_time else " (late)")
    )
    false = f"; false: {', '.join(run.false_alerts)}" if run.false_alerts else ""
    flapping = f"; flaps: {', '.join(run.flapping)}" if run.flapping else ""
    efficiency = f"; {', '.join(run.efficiency)}" if run.efficiency else ""
    return f"{run.fault}{cost}: {after}{efficiency}{false}{flapping}"


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
