"""Whether perfd names the right rank, and only then.

    python -m benchmarks.faults offline [--timelines DIR] [--json]
    python -m benchmarks.faults simulated [--world held-out] [--rounds 4] [--seed 2] [--json]

`offline` judges the bundled recordings, runs on GPUs with faults in them that were recorded, and the public
timelines AR.parquet and SE.parquet of DIR (default: $PERFD_SHARED/stragglers; needs pyarrow). Exits with 1 on
any false alarm or miss.

`simulated` is a simulation and says so: jobs of 2 to 64 ranks, operation by operation, with noise from
recordings; their operations go through the collector's reduction and the aggregator's state to the analysis,
which is asked once a second. The world `tuning` is what thresholds were chosen with, `held-out` has other
noise and other seeds. Exits with 1 beyond the bounds of `simulated.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.faults import simulated as simulation
from benchmarks.faults.judge import Verdict
from benchmarks.faults.offline import baseline_cases, gpu_cases, recorded_cases, timeline_cases
from benchmarks.faults.score import Case, Confusion, confusion, wilson

SCHEMA = "perfd.bench.faults/1"


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    offline = commands.add_parser("offline", help="recordings and public timelines; needs no GPU")
    offline.add_argument("--timelines", type=Path, metavar="DIR", default=_default_timelines())
    offline.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    simulated = commands.add_parser("simulated", help="many made jobs; needs no GPU")
    simulated.add_argument("--world", choices=("tuning", "held-out"), default="held-out")
    simulated.add_argument("--rounds", type=int, default=4, help="how often each fault is made")
    simulated.add_argument("--seed", type=int, default=2)
    simulated.add_argument("--most-ranks", type=int, default=64)
    simulated.add_argument(
        "--json", action="store_true", help="print one object of schema " + simulation.SCHEMA
    )
    args = parser.parse_args(arguments)
    return _simulated(args) if args.command == "simulated" else _offline(args)


def _simulated(args: argparse.Namespace) -> int:
    def report(verdict: Verdict) -> None:
        if not args.json:
            print(simulation.describe(verdict), flush=True)

    verdicts = simulation.run(
        world=args.world,
        rounds=args.rounds,
        seed=args.seed,
        most_ranks=args.most_ranks,
        on_verdict=report,
    )
    missed = simulation.failures(verdicts)
    if args.json:
        print(json.dumps(simulation.document(verdicts, args.world), indent=1))
    else:
        print(f"\n{len(verdicts)} simulated jobs, world {args.world}:\n{simulation.show(verdicts)}")
        print("\n".join(missed), end="\n" if missed else "")
    return 1 if missed else 0


def _offline(args: argparse.Namespace) -> int:
    cases = recorded_cases() + gpu_cases()
    cases += timeline_cases(args.timelines) if args.timelines else []
    baselines = baseline_cases(args.timelines)
    total = confusion(cases)
    if args.json:
        print(json.dumps(_document(cases, baselines), indent=1))
    else:
        _show(cases, baselines)
        if args.timelines is None:
            print("\nWithout timelines: name their folder with --timelines or $PERFD_SHARED.")
    return 1 if total.missed or total.false_alarms else 0


def _default_timelines() -> Path | None:
    shared = os.environ.get("PERFD_SHARED")
    folder = Path(shared) / "stragglers" if shared else None
    return folder if folder is not None and folder.is_dir() else None


def _show(cases: list[Case], baselines: dict[str, list[Case]]) -> None:
    width = max(len(case.name) for case in cases)
    print(f"{'run':<{width}}  {'to blame':>8}  {'blamed':>8}  {'ms':>6}  findings")
    for case in cases:
        print(
            f"{case.name:<{width}}  {_ranks(case.truth):>8}  {_ranks(case.blamed):>8}"
            f"  {1000 * case.seconds:6.0f}  {', '.join(case.kinds)}"
        )
    print(
        f"\n{'judge':<32}  {'found':>5}  {'missed':>6}  {'silent':>6}  {'false alarms':>12}  {'no input':>8}"
        f"  {'small':>5}"
    )
    for name, judged in {"perfd": cases, **baselines}.items():
        _show_line(name, confusion(judged))
    counts = confusion(cases)
    low, high = wilson(counts.found, counts.found + counts.missed)
    print(
        f"\nperfd found {counts.found} of {counts.found + counts.missed} (95%: {low:.0%} to {high:.0%}),",
        end="",
    )
    innocent = sum(not case.truth for case in cases)
    low, high = wilson(sum(bool(case.blamed) and not case.truth for case in cases), innocent)
    print(
        f" blamed somebody in {low:.0%} to {high:.0%} of runs like the {innocent} where nobody is to blame."
    )


def _show_line(name: str, counts: Confusion) -> None:
    print(
        f"{name:<32}  {counts.found:5}  {counts.missed:6}  {counts.silent:6}  {counts.false_alarms:12}"
        f"  {counts.no_input:8}  {counts.small:5}"
    )


def _ranks(ranks: frozenset[int] | None) -> str:
    if ranks is None:
        return "-"
    shown = sorted(ranks)
    return (", ".join(map(str, shown)) if len(shown) <= 3 else f"{len(shown)} ranks") or "nobody"


def _document(cases: list[Case], baselines: dict[str, list[Case]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "judges": {
            name: {**dataclasses.asdict(confusion(judged)), "cases": [_case(case) for case in judged]}
            for name, judged in {"perfd": cases, **baselines}.items()
        },
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "truth": sorted(case.truth),
        "blamed": None if case.blamed is None else sorted(case.blamed),
        "kinds": list(case.kinds),
        "seconds": case.seconds,
    }


if __name__ == "__main__":
    raise SystemExit(main())
