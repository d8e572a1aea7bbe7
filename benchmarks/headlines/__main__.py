"""The headline of recordings at every look: what it says when, flips, false blame, and whether it is right.

    python -m benchmarks.headlines [NAME ...] [--folder FOLDER ...] [--runs] [--json] [--tick-s 1]

Each recording is played at full speed and looked at each second of its time, as a live session does. Another
`--tick-s` looks at other moments: a headline that only some of them show is not steady. Without
`--folder` these are the recordings that ship, and those of `PERFD_SHARED` if that is set; `--runs` adds the
recorded runs of the fault benchmark. NAME takes only recordings whose name contains it. The truth is
`truth.toml`, or `case.json` beside a run. The exit code is 0 if every headline is right at the end, nobody
is blamed wrongly at any look, none changes more often than its job, and summaries of whole jobs name what
cost them most. Where `looks.jsonl` lies beside a recording, what the live session said is compared with it.

`--json` prints one object: `schema`, and `recordings` with `name`, `right`, `flips`, `false_blame`,
`cost_ratio` (what was measured to be lost by a fault), `gain_error` (of the last look), `right_at_end` (the
summary of the whole job) and `runs` of looks that say the same (each `first_step`, `last_step`, `kind`,
`culprits`, `gain_ratios`, the least and the most).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.headlines.live import agreement, live_looks
from benchmarks.headlines.looks import LIVE_TICK_S, Look, OfPhase, Run, Watched, must_be_named, watch
from benchmarks.headlines.truth import truth_of
from perfd.formatting import percent
from perfd.recording import bundled, bundled_names

SCHEMA = "perfd.bench.headlines/1"
_HEALTHY_S = 6.0
"""After a fault, for its end to be judged: rounds judge steps of the last seconds."""
_RUNS = Path(__file__).parents[1] / "gpu" / "recorded"


def recordings(folders: Sequence[Path], names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Those below the folders whose name contains one of `names`, all without any; each name once."""
    found = {name: bundled(name) for name in bundled_names()} if not folders else {}
    for folder in folders or _shared():
        for manifest in sorted(folder.rglob("recording.json")):
            run = manifest.parent
            # A run of the fault benchmark is a folder with its recording, truth and log.
            beside = any((run.parent / name).is_file() for name in ("case.json", "truth.json"))
            found.setdefault(run.parent.name if beside else run.name, run)
    return ((name, path) for name, path in found.items() if not names or any(one in name for one in names))


def _shared() -> list[Path]:
    shared = os.environ.get("PERFD_SHARED")
    return [Path(shared) / "recordings"] if shared else []


def document(watched: Sequence[Watched]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema": SCHEMA,
        "recordings": [
            {
                "name": one.name,
                "right": one.right,
                "flips": one.flips,
                "false_blame": sorted(one.false_blame),
                "gain_error": one.gain_error,
                "right_at_end": one.right_at_end,
                "cost_ratio": one.truth.cost_ratio if one.truth else None,
                "runs": [
                    {
                        "first_step": run.first.step,
                        "last_step": run.last.step,
                        "kind": run.first.kind,
                        "culprits": run.first.culprits,
                        "gain_ratios": run.gain_ratios,
                    }
                    for run in one.runs
                ],
            }
            for one in watched
        ],
    }


def _print(watched: Watched) -> None:
    print(f"{watched.name} ({len(watched.looks)} looks, {watched.took_s:.1f} s)")
    for run in watched.runs:
        print(f"  {_steps(run):>12}  {run.first.kind}{_culprits(run.first)}{_gain(run)}")
    for one in watched.of_phases:
        if one.phase.fault != "healthy" or one.wrongly:
            print(f"    {_phase(one)}")
    if watched.end is not None:
        gain = f"{_saves(watched.end.gain_ratio)}{' WRONG' if watched.right_at_end is False else ''}"
        print(f"  {'over':>12}  {watched.end.kind}{_culprits(watched.end)}{gain}")
    print(f"  {_verdict(watched)}", flush=True)


def _phase(one: OfPhase) -> str:
    ranks = ", ".join(f"rank {rank}" for rank in sorted(one.phase.ranks))
    lost = "" if one.phase.lost_ratio is None else f" lost {percent(one.phase.lost_ratio)}"
    words = [f"{one.phase.fault} {ranks}{lost}"]
    if one.named_after_s is not None:
        words.append(f"named after {one.named_after_s:.1f} s, saves {percent(one.gain_ratio or 0.0)}")
        words.append(f"still named {one.over_after_s or 0.0:.1f} s after its end (of {one.healthy_s:.1f} s)")
    elif must_be_named(one.phase):
        words.append("NOT NAMED")
    if one.wrongly:
        words.append(f"FALSE BLAME: rank {', '.join(map(str, sorted(one.wrongly)))}")
    return ": ".join(words[:2]) + "".join(f"; {word}" for word in words[2:])


def _over(phases: Sequence[OfPhase]) -> str:
    """How long headlines name faults after their end, where the job goes on for long enough to show it."""
    known = [one for one in phases if one.over_after_s is not None and one.healthy_s >= _HEALTHY_S]
    if not known:
        return "no fault with an end to judge"
    middle = statistics.median(one.over_after_s or 0.0 for one in known)
    never = sum(one.healthy_s - (one.over_after_s or 0.0) < LIVE_TICK_S for one in known)
    outlasting = f"still named {middle:.1f} s after their end (median), {never} until the next one"
    return f"{len(known)} faults: {outlasting}"


def _steps(run: Run) -> str:
    if run.last.step is None:
        return "no step"
    return f"step {run.first.step or 0}-{run.last.step}"


def _culprits(look: Look) -> str:
    return f": {', '.join(look.culprits)}" if look.culprits else ""


def _saves(gain: float | None) -> str:
    return "" if gain is None else f", cost {percent(gain)} of its time"


def _gain(run: Run) -> str:
    least, most = run.gain_ratios
    return "" if least is None or most is None else f", saves {percent(least)} to {percent(most)}"


def _verdict(watched: Watched) -> str:
    right = {True: "right", False: "WRONG", None: "no truth"}[watched.right]
    words = [right, f"{watched.flips} flips" + (" (TOO MANY)" if watched.too_many_flips else "")]
    if watched.false_blame:
        words.append(f"FALSE BLAME: rank {', '.join(map(str, sorted(watched.false_blame)))}")
    if watched.truth and watched.truth.cost_ratio is not None:
        words.append(f"measured: {percent(watched.truth.cost_ratio)}")
    if watched.gain_error is not None:
        words.append(f"at the end off by {100 * watched.gain_error:.1f} points")
    return "; ".join(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Watch them and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=Path, action="append", default=[])
    parser.add_argument("--runs", action="store_true", help="also the recorded runs of benchmarks.gpu.faults")
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    parser.add_argument(
        "--tick-s", type=float, default=LIVE_TICK_S, help="between looks (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    chosen = dict(recordings(args.folder, args.names))
    if args.runs:
        chosen |= recordings([_RUNS], args.names)
    watched = []
    for name, path in chosen.items():
        watched.append(watch(path, name, truth_of(path), tick_s=args.tick_s))
        if not args.json:
            _print(watched[-1])
            if (live := live_looks(path)) is not None:
                print(f"  {agreement(live, watched[-1].looks, watched[-1].end)}", flush=True)
    if args.json:
        print(json.dumps(document(watched)))
    known = [one for one in watched if one.right is not None]
    right, blaming = sum(bool(one.right) for one in known), sum(bool(one.false_blame) for one in known)
    flipping = sum(one.too_many_flips for one in watched)
    wrong_at_end = sum(one.right_at_end is False for one in known)
    if not args.json:
        print(f"{right} of {len(known)} headlines right, {blaming} with false blame, {flipping} with flips")
        print(f"{len(known) - wrong_at_end} of {len(known)} summaries of whole jobs right")
        judged = [*watched, *(phase for one in watched for phase in one.of_phases)]
        errors = [one.gain_error for one in judged if one.gain_error is not None]
        if errors:
            worst, middle = 100 * max(errors), 100 * statistics.median(errors)
            print(f"gains of {len(errors)} faults: off by {middle:.1f} points (median), {worst:.1f} at most")
        print(_over([phase for one in watched for phase in one.of_phases if must_be_named(phase.phase)]))
    return 0 if right == len(known) and not (blaming or flipping or wrong_at_end) else 1


if __name__ == "__main__":
    raise SystemExit(main())
