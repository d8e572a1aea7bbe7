"""What a profiler plugin adds to the host's part of an NCCL operation: none, perfd's, the Inspector, none ...

    python -m benchmarks.gpu.nccl_cost --out FOLDER --library LIBNCCL [--gpus 2] [--rounds 10]

No framework: each process calls `ncclAllReduce` on 16 KiB through ctypes, a hundred times in a row before it
waits for the GPU, which is slower. So what is timed is how long a call keeps the host: the part of a plugin's
cost that a job feels though its GPUs are busy. A process counts with the median of its blocks; each round is
set against the bare processes before and after it. NCCL's Inspector is found and set up as in `overhead.py`,
and one that wrote nothing does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from ctypes import c_int, c_size_t
from pathlib import Path

from perfd_collectors.nccl.plugin_library import LIBRARY

from benchmarks.gpu.nccl_job import Driver, Nccl
from benchmarks.gpu.overhead import beside_bare, inspected, inspector_environment, inspector_library

SCHEMA = "perfd.bench.gpu.nccl_cost/1"
_BYTES = 16_384
_FLOAT32, _SUM = 7, 0
_IN_A_ROW, _BLOCKS, _SETTLING_BLOCKS = 100, 400, 40
_LIMIT_S = 90


def time_calls(library: Path, rank: int, ranks: int, folder: Path) -> list[float]:
    """By block, the seconds that one call took."""
    driver, nccl = Driver(rank), Nccl(library)
    world = nccl.communicator(rank, ranks, folder / "id")
    memory = driver.memory(_BYTES)
    call = nccl.function("ncclAllReduce")
    arguments = (
        *(memory, memory, c_size_t(_BYTES // 4), c_int(_FLOAT32), c_int(_SUM)),
        *(world, driver.stream),
    )
    taken_s = []
    for _ in range(_SETTLING_BLOCKS + _BLOCKS):
        begin = time.perf_counter()
        for _ in range(_IN_A_ROW):
            call(*arguments)
        taken_s.append((time.perf_counter() - begin) / _IN_A_ROW)
        driver.wait()
    nccl.destroy(world)
    return taken_s[_SETTLING_BLOCKS:]


def run_mode(
    mode: str, library: Path, gpus: int, folder: Path, inspector: Path | None
) -> tuple[float, int] | None:
    """Seconds of a call, the mean over ranks, and how many operations were written; None when it failed."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="perfd-bench-") as shared:
        environment = dict(os.environ)
        if mode == "perfd":
            environment |= {"NCCL_PROFILER_PLUGIN": str(LIBRARY), "PERFD_NCCL_DIR": shared}
        if mode == "inspector" and inspector is not None:
            environment |= inspector_environment(inspector, folder)
        command = [sys.executable, "-m", "benchmarks.gpu.nccl_cost", "--library", str(library)]
        command += ["--out", str(folder), "--gpus", str(gpus)]
        processes = []
        for rank in range(gpus):
            with (folder / f"rank-{rank}.log").open("wb") as log:
                reported = {**environment, "RANK": str(rank), "WORLD_SIZE": str(gpus)}
                own = [*command, "--rank", str(rank)]
                processes.append(subprocess.Popen(own, env=reported, stdout=log, stderr=log))
        try:
            codes = [process.wait(_LIMIT_S) for process in processes]
        except subprocess.TimeoutExpired:
            for process in processes:
                process.kill()
                process.wait()
            return None
    written = inspected(folder)
    if any(codes) or (mode == "inspector" and not written):
        return None
    medians = [statistics.median(json.loads(path.read_text())) for path in folder.glob("rank-*.json")]
    return statistics.mean(medians), written


def added_s(runs: Sequence[tuple[str, float | None]]) -> dict[str, list[float]]:
    """By mode, round by round, how much longer a call took than in the bare runs before and after."""
    found: dict[str, list[float]] = {}
    for mode, call_s, usual_s in beside_bare(runs):
        found.setdefault(mode, []).append(call_s - usual_s)
    return found


def main() -> int:
    """Time one rank, or run all modes in turns, print, and return 1 when a mode has no result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--library", type=Path, required=True, help="libnccl.so")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rank", type=int, help="be that process")
    args = parser.parse_args()
    if args.rank is not None:
        taken_s = time_calls(args.library, args.rank, args.gpus, args.out)
        (args.out / f"rank-{args.rank}.json").write_text(json.dumps(taken_s))
        return 0
    inspector = inspector_library(sys.executable, os.environ.get("LD_LIBRARY_PATH", ""))
    modes = ["perfd", *(["inspector"] if inspector else [])]
    order = [mode for _ in range(args.rounds) for mode in ("bare", *modes)] + ["bare"]
    runs: list[tuple[str, float | None]] = []
    operations = 0
    for number, mode in enumerate(order):
        folder = args.out / f"{number:02}-{mode}"
        done = run_mode(mode, args.library, args.gpus, folder, inspector)
        runs.append((mode, done[0] if done else None))
        operations += done[1] if done else 0
        print(f"{number + 1} of {len(order)}: {mode} {runs[-1][1]}", file=sys.stderr, flush=True)
    found = added_s(runs)
    document = {
        "schema": SCHEMA,
        "inspector": None if inspector is None else str(inspector),
        "inspector_operations": operations,
        "runs": [{"mode": mode, "call_s": call_s} for mode, call_s in runs],
        "added_s": found,
        "median_added_s": {mode: statistics.median(each) for mode, each in found.items()},
    }
    print(json.dumps(document, indent=1))
    return 0 if all(found.get(mode) for mode in modes) else 1


if __name__ == "__main__":
    sys.exit(main())
