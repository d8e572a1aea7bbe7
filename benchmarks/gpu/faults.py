"""Faults in a real training job on 2 or more GPUs: is the rank named, and nobody when nothing is wrong.

    python -m benchmarks.gpu.faults run --out FOLDER [--gpus 2] [--repeat 1] [--seed 1] [--limit-s 540]
    python -m benchmarks.gpu.faults judge FOLDER
    python -m benchmarks.gpu.faults run --out FOLDER --dry-run --torchrun PATH [--only slow_rank]

Runs `train.py` under `perfd run` once for each case, in random order; half of the runs have nothing wrong, or
nothing that a rank is to blame for. The fault begins in the middle, so that each run has its own clean half.
The truth of a case is its fault and its rank; what it really costs is the median step by CUDA events after
the fault's begin against before. A fault that costs less than 2 % is not counted: the host had time to spare.

Meanwhile the session is asked twice a second what it says. Each run is recorded, packed, and can be judged
again by another version of perfd with `judge`, without a GPU. `--dry-run` makes the job so small that CPUs
can do it with gloo, to try all of this: verdicts mean nothing there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.simulated import Ratio
from benchmarks.gpu.fault_runs import Case, Outcome, Plan, judge_again, run_case

LEAST_COST, MUST_FIND = 0.02, 0.10
DATA_PARALLEL = (
    ("slow_rank", 10.0), ("slow_rank", 20.0), ("slow_rank", 40.0), ("slow_rank", 80.0), ("slow_rank", 160.0),
    ("slow_loader", 0.1), ("forced_sync", 0.02), ("tiny_kernels", 0.2), ("late_entry", 0.1), ("sigstop", 0.0),
)  # fmt: skip
PIPELINE = (("slow_rank", 80.0), ("slow_rank", 160.0), ("slow_loader", 0.1), ("forced_sync", 0.1))
BLAMELESS_DATA_PARALLEL = (*(("none", 0.0),) * 7, ("slow_loaders", 0.1), ("no_p2p", 0.0))
BLAMELESS_PIPELINE = (*(("none", 0.0),) * 2, ("heavy_last_stage", 6.0))
_DRY_RUN = ("--layers", "4", "--hidden", "64", "--sequence", "16", "--micro-batch", "2")


def planned(gpus: int, repeat: int, seed: int) -> list[Case]:
    """All cases in random order: data parallel, a pipeline, and with four GPUs both at once."""
    order = random.Random(seed)
    cases = [
        Case(fault=fault, strength=strength, rank=order.randrange(gpus), stages=stages)
        for stages, kinds in (
            (1, DATA_PARALLEL + BLAMELESS_DATA_PARALLEL),
            (2, PIPELINE + BLAMELESS_PIPELINE),
        )
        # Of two ranks in a pipeline, neither has a peer: nobody can be told to be slow.
        for fault, strength in kinds * repeat
        if stages == 1 or gpus > 2 or fault in {"none", "heavy_last_stage"}
    ]
    order.shuffle(cases)
    return cases


def report(outcomes: Sequence[Outcome]) -> str:
    """Each run on a line, then detection, false alarms and their intervals."""
    lines = [_line(outcome) for outcome in outcomes]
    counted = [one for one in outcomes if one.case.truth and (one.cost_ratio or 0.0) >= LEAST_COST]
    costly = [one for one in counted if (one.cost_ratio or 0.0) >= MUST_FIND]
    blameless = [one for one in outcomes if not one.case.truth]
    named = [one for one in counted if one.blamed]
    in_time = [one for one in costly if _in_time(one)]
    lines += [
        f"found, of faults that cost 10 % and more  {_ratio([_right(one) for one in costly])}",
        f"found, of all that cost 2 % and more      {_ratio([_right(one) for one in counted])}",
        f"the right rank, where one is named        {_ratio([_right(one) for one in named])}",
        f"within 10 s or 5 steps                    {Ratio(hits=len(in_time), of=len(costly))}",
        f"false alarms at the end                   {_ratio([bool(one.blamed) for one in blameless])}",
        f"false alarms at any time                  {_ratio([one.ever_wrong for one in blameless])}",
    ]
    errors = [
        abs(one.lost_ratio - one.cost_ratio / (1 + one.cost_ratio))
        for one in counted
        if _right(one) and one.lost_ratio is not None and one.cost_ratio not in (None, float("inf"))
    ]
    times = [one.detected_after_s for one in counted if one.detected_after_s is not None]
    if errors:
        lines.append(f"lost share of a step, median error        {statistics.median(errors):.1%}")
    if times:
        lines.append(f"time to detect, median                    {statistics.median(times):.1f} s")
    lines += _baselines(costly, blameless)
    return "\n".join(lines)


def _baselines(costly: Sequence[Outcome], blameless: Sequence[Outcome]) -> list[str]:
    """Simpler rules on the same runs; of a job that never ended they have no step."""
    lines = ["simpler rules, given what every rank's own work really took:"]
    for name in dict.fromkeys(name for one in (*costly, *blameless) for name in one.baselines):
        found = [one.baselines[name] == one.case.truth for one in costly if one.baselines]
        false = [bool(one.baselines[name]) for one in blameless if one.baselines]
        lines.append(f"  {name + ': found':38}  {_ratio(found)}")
        lines.append(f"  {'  false alarms':38}  {_ratio(false)}")
    return lines


def main() -> int:
    """Run or judge; the exit code is 1 when there is no outcome."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train, under perfd")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--gpus", type=int, default=2)
    run.add_argument("--repeat", type=int, default=1)
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--limit-s", type=float, default=540.0)
    run.add_argument("--only", help="this fault alone")
    run.add_argument("--stages", type=int, help="jobs of that many pipeline stages alone")
    run.add_argument("--dry-run", action="store_true", help="a job for CPUs")
    run.add_argument("--torchrun", default="torchrun", help="the program")
    judge = commands.add_parser("judge", help="judge recorded runs again, but for hangs")
    judge.add_argument("folder", type=Path)
    args = parser.parse_args()
    outcomes = _judged(args.folder) if args.command == "judge" else _run_all(args)
    print(report(outcomes))
    return 0 if outcomes else 1


def _run_all(args: argparse.Namespace) -> list[Outcome]:
    plan = Plan(gpus=args.gpus, torchrun=(args.torchrun,))
    if args.dry_run:
        plan = Plan(gpus=args.gpus, torchrun=(args.torchrun,), train_options=_DRY_RUN)
    cases = [
        case
        for case in planned(args.gpus, args.repeat, args.seed)
        if args.only in (None, case.fault) and args.stages in (None, case.stages)
    ]
    deadline_s = time.monotonic() + args.limit_s
    outcomes: list[Outcome] = []
    longest_s = 0.0
    for number, case in enumerate(cases):
        started_s = time.monotonic()
        if started_s + longest_s > deadline_s:
            print(f"The time is up after {number} of {len(cases)} runs.", file=sys.stderr)
            break
        outcome = run_case(case, plan, args.out / f"{number:02}-{case.name}")
        longest_s = max(longest_s, time.monotonic() - started_s)
        if outcome is not None:
            outcomes.append(outcome)
            print(_line(outcome), file=sys.stderr, flush=True)
    (args.out / "outcomes.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return outcomes


def _judged(folder: Path) -> list[Outcome]:
    # Of a job that was ended for its hang the records tell the end, too.
    cases = [case for case in sorted(folder.glob("*/case.json")) if "sigstop" not in case.parent.name]
    return [judge_again(case.parent) for case in cases]


def _line(one: Outcome) -> str:
    cost = "-" if one.cost_ratio is None else f"{one.cost_ratio:.1%}"
    lost = "-" if one.lost_ratio is None else f"{one.lost_ratio:.1%}"
    after = "-" if one.detected_after_s is None else f"{one.detected_after_s:.1f} s"
    verdict = "right" if _right(one) else "WRONG" if one.blamed or (one.cost_ratio or 0) >= MUST_FIND else ""
    return (
        f"{one.case.name:32} costs {cost:>7}, said {', '.join(one.kinds)} {one.blamed} lost {lost}"
        f" after {after}{' (once wrong)' if one.ever_wrong else ''}  {verdict}"
    )


def _right(one: Outcome) -> bool:
    return one.blamed == one.case.truth


def _in_time(one: Outcome) -> bool:
    after_s = one.detected_after_s
    return after_s is not None and (after_s <= 10 or after_s <= 5 * (one.after_s or 0.0))


def _ratio(hits: Sequence[bool]) -> Ratio:
    return Ratio(hits=sum(hits), of=len(hits))


if __name__ == "__main__":
    sys.exit(main())
