"""What perfd costs a real training job, and NCCL's own Inspector: bare, perfd, Inspector, bare, ...

    python -m benchmarks.gpu.overhead --out FOLDER [--gpus 2] [--rounds 4] [--torchrun PATH] [--dry-run]
    python -m benchmarks.gpu.overhead --out FOLDER --small-all-reduces 1000

The same `train.py` is run in turns; what counts is the median step by CUDA events, without the first fifteen.
Each round is set against the mean of the bare runs before and after it, so that a GPU that warms up counts
for nobody. `perfd_kineto` is `perfd run --kineto`: the job can be captured, and never is. The Inspector takes
part if NCCL brings it: with torch's NCCL wheel, or where the loader looks. It is set up as its README says to
begin with, and a run in which it wrote nothing does not count; printed is how many operations it wrote.
With `--small-all-reduces` the job has little else to do, so that the host's part of them decides how long a
step takes: the most that a profiler of NCCL can cost, told for each operation too.
`--dry-run` makes the job so small that CPUs can do it with gloo: then no plugin is ever loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

SCHEMA = "perfd.bench.gpu.overhead/1"
INSPECTOR = "libnccl-profiler-inspector.so"
TRAIN = Path(__file__).with_name("train.py")
_PERFD = {"perfd": "--no-nsys", "perfd_kineto": "--kineto"}
"""By mode, what `perfd run` gets."""
_SETTLED_STEPS = 15
_LIMIT_S = 300
_SMALL_JOB = ("--layers", "2", "--hidden", "64", "--sequence", "16", "--micro-batch", "2")
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/opt/nccl/lib",
)


def inspector_library(python: str, loader_path: str) -> Path | None:
    """NCCL's Inspector on this machine: beside the NCCL of that Python's torch, or where the loader looks."""
    code = "import nvidia.nccl as n; print(*n.__path__)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    wheels = [Path(path) / "lib" for path in found.stdout.split()]
    folders = [*wheels, *(Path(path) for path in loader_path.split(":") if path), *map(Path, _FOLDERS)]
    return next((folder / INSPECTOR for folder in folders if (folder / INSPECTOR).is_file()), None)


def beside_bare(runs: Sequence[tuple[str, float | None]]) -> Iterator[tuple[str, float, float]]:
    """Of each run between two bare ones its mode, its figure, and the mean of theirs.

    `runs` are modes and figures in the order in which they ran; a run that failed has none. The later bare
    run is told beside the earlier: how much two of them differ says how much of a difference means nothing.
    """
    bare = [index for index, (mode, _) in enumerate(runs) if mode == "bare"]
    for before, after in pairwise(bare):
        first, last = runs[before][1], runs[after][1]
        if first is None or last is None:
            continue
        yield "bare", last, first
        for mode, figure in runs[before + 1 : after]:
            if figure is not None:
                yield mode, figure, (first + last) / 2


def overheads(runs: Sequence[tuple[str, float | None]]) -> dict[str, list[float]]:
    """By mode, how much longer median steps were than in the bare runs before and after, run by run."""
    found: dict[str, list[float]] = {}
    for mode, step_s, usual_s in beside_bare(runs):
        found.setdefault(mode, []).append(step_s / usual_s - 1)
    return found


def added_per_operation_s(
    runs: Sequence[tuple[str, float | None]], found: Mapping[str, Sequence[float]], operations: int
) -> dict[str, float]:
    """By mode, the median time that each of a step's operations took longer; nothing without operations."""
    bare = [step_s for mode, step_s in runs if mode == "bare" and step_s is not None]
    if not operations or not bare:
        return {}
    each_s = statistics.median(bare) / operations
    return {mode: statistics.median(ratios) * each_s for mode, ratios in found.items()}


def run_mode(mode: str, folder: Path, train: Sequence[str], inspector: Path | None) -> float | None:
    """The median step of one run in seconds; None when the job failed, whose output is in `folder`."""
    folder.mkdir(parents=True)
    times = folder / "times.json"
    command, environment = [*train, "--times", str(times)], _environment(mode, folder, inspector)
    if option := _PERFD.get(mode):
        perfd = (sys.executable, "-m", "perfd", "run", option, "--out", str(folder / "out"), "--")
        command = [*perfd, *command]
    with (folder / "log").open("wb") as log:
        try:
            subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return None
    if not times.is_file() or (mode == "inspector" and not inspected(folder)):
        return None
    steps: list[float] = json.loads(times.read_text())["seconds"]
    return statistics.median(steps[_SETTLED_STEPS:]) if len(steps) > _SETTLED_STEPS else None


def inspected(folder: Path) -> int:
    """How many operations the Inspector has written of the run in `folder`."""
    return sum(path.read_bytes().count(b"\n") for path in _dumps(folder).glob("*") if path.is_file())


def _environment(mode: str, folder: Path, inspector: Path | None) -> Mapping[str, str]:
    chosen = ("NCCL_PROFILER_PLUGIN", "NCCL_INSPECTOR_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(chosen)}
    if mode == "inspector" and inspector is not None:
        environment |= inspector_environment(inspector, folder)
    return environment


def inspector_environment(library: Path, folder: Path) -> dict[str, str]:
    """What makes a job of NCCL record with its Inspector, which `inspected` then counts in the folder."""
    return {
        "NCCL_PROFILER_PLUGIN": str(library),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_DIR": str(_dumps(folder)),
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
    }


def _dumps(folder: Path) -> Path:
    return folder / "inspector"


def main() -> int:
    """Run all modes in turns, print, and return 1 when a mode has no result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument(
        "--modes", default=",".join((*_PERFD, "inspector")), help="between bare (%(default)s)"
    )
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--small-all-reduces", type=int, default=0, metavar="N", help="in each step")
    parser.add_argument("--dry-run", action="store_true", help="a job for CPUs")
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    args = parser.parse_args()
    inspector = inspector_library(args.python, os.environ.get("LD_LIBRARY_PATH", ""))
    modes = [mode for mode in args.modes.split(",") if mode != "inspector" or inspector]
    train = [args.torchrun, "--nproc-per-node", str(args.gpus), str(TRAIN), "--steps", str(args.steps)]
    train += ["--small-all-reduces", str(args.small_all_reduces)]
    train += _SMALL_JOB if args.dry_run or args.small_all_reduces else ()
    order = [mode for _ in range(args.rounds) for mode in ("bare", *modes)] + ["bare"]
    runs = []
    written = []
    for number, mode in enumerate(order):
        folder = args.out / f"{number:02}-{mode}"
        runs.append((mode, run_mode(mode, folder, train, inspector)))
        written += [inspected(folder)] if mode == "inspector" else []
        print(f"{number + 1} of {len(order)}: {mode} {runs[-1][1]}", file=sys.stderr, flush=True)
    found = overheads(runs)
    document = {
        "schema": SCHEMA,
        "inspector": None if inspector is None else str(inspector),
        "inspector_operations": written,
        "dry_run": args.dry_run,
        "runs": [{"mode": mode, "step_s": step_s} for mode, step_s in runs],
        "overhead_ratio": found,
        "small_all_reduces": args.small_all_reduces,
        "added_per_operation_s": added_per_operation_s(runs, found, args.small_all_reduces),
    }
    print(json.dumps(document, indent=1) if args.json else show(document))
    return 0 if all(found.get(mode) for mode in modes) else 1


def show(document: Mapping[str, Any]) -> str:
    """The same as text."""
    lines = [f"Inspector: {document['inspector'] or 'this machine has none'}"]
    if document["inspector"]:
        lines[0] += f"; it wrote {document['inspector_operations']} operations, run by run"
    for mode, ratios in document["overhead_ratio"].items():
        spread = f"{min(ratios):+.2%} to {max(ratios):+.2%}, {len(ratios)} runs"
        lines.append(f"{mode:12} {statistics.median(ratios):+.2%} in the median step ({spread})")
    for mode, added_s in document["added_per_operation_s"].items():
        lines.append(f"{mode:12} {1e6 * added_s:+.2f} us for each of a step's operations")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
