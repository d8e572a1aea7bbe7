"""Jobs of an hour made of recordings of a minute: what perfd says of each of their minutes, and its cost.

    python -m benchmarks.headlines.long_jobs FOLDER ... [--only NAME ...] [--minutes 20] [--keep FOLDER]

A recording with the times of its faults (`truth.json`) is cut between steps. Its healthy steps are
repeated with later times, step numbers, sequence numbers and counters, with a pause of all ranks every
five minutes, as for a checkpoint. Its first fault is repeated in minute 16, its last one five minutes before
the end. The result is written with perfd's own writer, played and looked at each second. Printed are, for
each minute, the headlines, the alerts that fire, CPU time and memory of this process (agent and aggregator),
and at the end the faults of the summary. The exit code is 0 if each fault is named while it lasts, no rank is
blamed at another time (but for the steps that are still judged after its end), and no pause is a hang.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.headlines.__main__ import recordings
from benchmarks.headlines.alterations import Piece, pieces, write
from benchmarks.headlines.repeated_job import LongJob, Stretch, stretches
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Kind
from perfd.session.replay_session import ReplayOptions, ReplayProgress, replay

_CHECKPOINT_EVERY_S, _CHECKPOINT_S = 300.0, 12.0
"""From one pause to the next, and how long it takes."""
_FIRST_FAULT_S, _FAULT_S = 960.0, 60.0
"""When the first fault begins, and how long each lasts."""
_LAST_FAULT_BEFORE_END_S = 300.0
"""When the last one begins."""
_SEEN_AFTER_S = 40.0
"""For so long after a fault its steps may still be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A fault of the long job."""

    fault: str
    ranks: frozenset[int]
    begin_unix_s: float
    end_unix_s: float


def long_job(recording: Path, truth: Path, minutes: float) -> tuple[list[Piece], list[Placed]] | None:
    """The pieces and faults of a job of so many minutes; None without healthy or bad steps.

    The job begins as the recording, up to its longest healthy stretch, whose faults count, too.
    """
    known = stretches(recording, truth)
    healthy = [one for one in known if one.fault == "healthy"]
    bad = [one for one in known if one.fault != "healthy"]
    if not healthy or not bad:
        return None
    usual = max(healthy, key=lambda one: one.end_ns - one.begin_ns)
    made, end_s = LongJob(pieces(recording), usual), 60 * minutes
    placed = [
        _placed(one, one.begin_ns / 1e9, one.end_ns / 1e9) for one in bad if one.end_ns <= usual.begin_ns
    ]
    due = [(_FIRST_FAULT_S, bad[0]), (end_s - _LAST_FAULT_BEFORE_END_S, bad[-1])]
    checkpoint_s = _CHECKPOINT_EVERY_S
    while made.now_s < end_s:
        if made.now_s >= checkpoint_s:
            checkpoint_s += _CHECKPOINT_EVERY_S
            made.pause(_CHECKPOINT_S)
        if due and made.now_s >= due[0][0]:
            _, fault = due.pop(0)
            began_unix_s, until_s = made.now_unix_s, made.now_s + _FAULT_S
            while made.now_s < until_s:
                made.add(fault)
            placed.append(_placed(fault, began_unix_s, made.now_unix_s))
        made.add(usual)
    made.end()
    return made.pieces, placed


def _placed(one: Stretch, begin_unix_s: float, end_unix_s: float) -> Placed:
    return Placed(fault=one.fault, ranks=one.ranks, begin_unix_s=begin_unix_s, end_unix_s=end_unix_s)


@dataclass(slots=True)
class _Minute:
    """What was said in it."""

    said: list[str] = field(default_factory=list)
    alerts: set[str] = field(default_factory=set)
    cpu_s: float = 0.0


def play(recording: Path, name: str, placed: Sequence[Placed]) -> bool:
    """Look at it each second and print; returns whether all was right."""
    minutes: dict[int, _Minute] = {}
    named, wrongly = [False] * len(placed), set[str]()
    summaries: list[JobSummary] = []
    cpu_s, hangs = time.process_time(), [False]

    def look(progress: ReplayProgress) -> None:
        nonlocal cpu_s
        minute = minutes.setdefault(int(progress.played_s // 60), _Minute())
        now_s = time.process_time()
        minute.cpu_s, cpu_s = minute.cpu_s + now_s - cpu_s, now_s
        for job in progress.aggregator.jobs():
            summary = progress.aggregator.live(job)
            if summary is None:
                continue
            head = summary.bottleneck
            hangs[0] |= head.kind is Kind.HANG
            said = head.headline if not head.culprits else f"{head.kind.value}: {head.culprit_names}"
            said = f"{said}{' (may be over)' if head.may_be_over else ''}"
            if not minute.said or minute.said[-1] != said:
                minute.said.append(said)
            unix_s = progress.start_unix_s + progress.played_s
            blamed = {
                culprit.id
                for one in summary.findings
                for culprit in one.culprits
                if culprit.kind == "rank" and not one.may_be_over
            }
            allowed: set[int | str] = set()
            for at, fault in enumerate(placed):
                if fault.begin_unix_s <= unix_s < fault.end_unix_s + _SEEN_AFTER_S:
                    allowed |= fault.ranks
                    named[at] |= bool(blamed & fault.ranks) or (
                        not fault.ranks
                        and head.kind.value in {"data_loading", "late_hosts", "periodic_stall"}
                    )
            wrongly.update(f"rank {rank} in minute {progress.played_s / 60:.1f}" for rank in blamed - allowed)
        minute.alerts |= {one["name"] for one in progress.aggregator.alerts() if one["state"] == "firing"}

    result = replay(ReplayOptions(recording=recording, tick_s=1.0, allow_missing=True), on_progress=look)
    summaries += result.summaries
    print(f"{name}: faults {[(one.fault, sorted(one.ranks)) for one in placed]}")
    for number, minute in minutes.items():
        alerts = f"; fires: {', '.join(sorted(minute.alerts))}" if minute.alerts else ""
        cost = f"{minute.cpu_s / 60 * 1e3:5.1f} ms CPU a round"
        print(f"  {number:3d} min  {cost}  {' | '.join(minute.said)}{alerts}")
    for summary in summaries:
        for one in summary.past.faults:
            print(f"    past: {one.sentence}")
    left = [one["name"] for one in result.alerts if one["state"] == "firing"]
    print(f"  alerts: {[(one['name'], one['first_step'], one['state']) for one in result.alerts]}")
    print(f"  named {named}, wrongly {sorted(wrongly)[:8]}, {len(left)} alerts left")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"  at most {peak_mb:.0f} MB in this process so far, the recording included", flush=True)
    return all(named) and not wrongly and not hangs[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Make, play and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--keep", type=Path, help="write the recordings here, and do not play them")
    args = parser.parse_args(argv)
    right = seen = 0
    for name, path, truth in _with_truth(args.folders, args.only):
        made = long_job(path, truth, args.minutes)
        if made is None:
            print(f"{name}: no healthy or no bad steps", flush=True)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = (args.keep or Path(scratch)) / name
            write(made[0], folder, name)
            placed = made[1]
            made = None
            if args.keep is None:
                seen += 1
                right += play(folder, name, placed)
    print(f"{right} of {seen} long jobs right")
    return 0 if right == seen else 1


def _with_truth(folders: Sequence[Path], only: Sequence[str]) -> Iterator[tuple[str, Path, Path]]:
    for name, path in recordings(folders, only):
        if (truth := path.parent / "truth.json").is_file():
            yield name, path, truth


if __name__ == "__main__":
    raise SystemExit(main())
