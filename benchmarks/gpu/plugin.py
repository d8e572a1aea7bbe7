"""perfd's NCCL plugin against a PyTorch profile of the same steps: is each kernel there, and as long.

    python -m benchmarks.gpu.plugin run --out FOLDER [--gpus 2] [--stages 1] [--torchrun PATH]
    python -m benchmarks.gpu.plugin compare FOLDER

`run` trains 40 steps with the plugin and a profile of steps 20 to 22, and writes what the plugin recorded as
`operations.jsonl` beside the profiles; `compare` needs no GPU. Each of the profile's NCCL kernels is held
against the operations that began with it; the two clocks are a constant apart. Receives are taken as NCCL
tells them and as perfd times them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from perfd_collectors.nccl.operations import RingBuffers
from perfd_collectors.nccl.plugin_library import LIBRARY
from perfd_collectors.nccl.segments import FUNCTIONS, UNTIMED_KERNEL_NS, Segment, find_segments

from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.operations.p2p_timing import receiver_durations_s
from perfd.errors import Unavailable

TRAIN = Path(__file__).with_name("train.py")
OPERATIONS = "operations.jsonl"
_POLL_S = 0.02
_NEAR_NS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """NCCL kernels of one rank in the order of their begin, (n,) each."""

    starts_ns: Ints
    durations_s: Floats

    def within(self, begin: int, count: int) -> Kernels:
        """So many of them from one on."""
        chosen = slice(begin, begin + count)
        return Kernels(starts_ns=self.starts_ns[chosen], durations_s=self.durations_s[chosen])


def record(command: Sequence[str], path: Path) -> int:
    """Run a command with the plugin, and write every operation that it records; the exit code."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="perfd-bench-") as shared, path.open("w") as out:
        environment = {**os.environ, "NCCL_PROFILER_PLUGIN": str(LIBRARY), "PERFD_NCCL_DIR": shared}
        segments: dict[Path, tuple[Segment, RingBuffers]] = {}
        with subprocess.Popen(command, env=environment) as process:
            while process.poll() is None:
                _poll(Path(shared), segments, out)
                time.sleep(_POLL_S)
            _poll(Path(shared), segments, out)
        return process.returncode


def _poll(shared: Path, segments: dict[Path, tuple[Segment, RingBuffers]], out: Any) -> None:  # noqa: ANN401  (a file)
    for path in find_segments(shared):
        if path not in segments:
            try:
                segment = Segment(path)
            except Unavailable:
                continue
            segments[path] = segment, RingBuffers(segment)
    for segment, rings in segments.values():
        reading = rings.read()
        if reading.lost:
            out.write(json.dumps({"rank": segment.process.rank, "lost": reading.lost}) + "\n")
        for one in reading.operations.rows():
            line = {"rank": segment.process.rank, "fn": FUNCTIONS[one.function], **one._asdict()}
            out.write(json.dumps(line) + "\n")


def profiled(path: Path) -> Kernels:
    """The NCCL kernels in a PyTorch profile, by its own clock."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    found = sorted(
        (event["ts"] * 1e3, event["dur"] / 1e6)
        for event in events
        if event.get("cat") == "kernel" and "nccl" in event["name"].lower()
    )
    starts, durations = zip(*found, strict=True) if found else ((), ())
    return Kernels(starts_ns=np.array(starts, dtype=np.int64), durations_s=np.array(durations))


def recorded(operations: Sequence[Mapping[str, Any]], durations_s: Floats) -> Kernels:
    """The kernels that operations of one rank ran in: those that began together are one."""
    starts = np.array([one["gpu_start_ns"] for one in operations], dtype=np.int64)
    kernels, of_kernel = np.unique(starts, return_inverse=True)
    longest = np.zeros(len(kernels))
    np.maximum.at(longest, of_kernel, durations_s)
    return Kernels(starts_ns=kernels, durations_s=longest)


def reported_s(operations: Sequence[Mapping[str, Any]]) -> Floats:
    """How long operations took as NCCL tells it."""
    return np.array([(one["gpu_stop_ns"] - one["gpu_start_ns"]) / 1e9 for one in operations])


def as_timed_s(by_rank: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[int, Floats]:
    """By rank, the same with what NCCL's stamps leave out, and receives that last until their sender sent.

    Numbers of communicators are each process's own; in this job, whose ranks make them alike, they agree.
    """
    timed = {rank: reported_s(operations) + UNTIMED_KERNEL_NS / 1e9 for rank, operations in by_rank.items()}
    places = {
        (rank, one["fn"], one["peer_or_root"], one["communicator"], one["operation_sequence"]): place
        for rank, operations in by_rank.items()
        for place, one in enumerate(operations)
    }
    pairs: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for (rank, function, peer, communicator, sequence), place in sorted(places.items()):
        sent = places.get((peer, "Send", rank, communicator, sequence))
        if function == "Recv" and sent is not None:
            pairs.setdefault((peer, rank, communicator), []).append((sent, place))
    for (sender, receiver, _), matched in pairs.items():
        sent, received = np.array(matched).T
        starts = np.array(
            [[by_rank[sender][s]["gpu_start_ns"], by_rank[receiver][r]["gpu_start_ns"]] for s, r in matched]
        )
        both = np.stack([timed[sender][sent], timed[receiver][received]], axis=1)
        timed[receiver][received] = receiver_durations_s(both, starts)
    return timed


def aligned(profile: Kernels, plugin: Kernels) -> Kernels | None:
    """Those of the plugin's kernels that are the profile's; None when they are not there one for one."""
    count = len(profile.starts_ns)
    if not 1 < count <= len(plugin.starts_ns):
        return None
    gaps, own = np.diff(profile.starts_ns), np.diff(plugin.starts_ns)
    windows = np.lib.stride_tricks.sliding_window_view(own, count - 1)
    apart_ns = np.abs(windows - gaps).max(axis=1)
    best = int(apart_ns.argmin())
    return plugin.within(best, count) if apart_ns[best] < _NEAR_NS else None


def compare(folder: Path) -> bool:
    """Print what was found; whether every kernel of every profile was."""
    lines = [json.loads(line) for line in (folder / OPERATIONS).read_text().splitlines()]
    print(f"lost before they were read: {sum(line.get('lost', 0) for line in lines)}")
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("gpu_stop_ns", 0) > 0:
            by_rank.setdefault(line["rank"], []).append(line)
    timed = as_timed_s(by_rank)
    whole = True
    for path in sorted(folder.glob("rank-*.json*")):
        rank = int(path.name.removeprefix("rank-").partition(".")[0])
        profile, operations = profiled(path), by_rank.get(rank, [])
        print(f"rank {rank}: {len(profile.starts_ns)} NCCL kernels in the profile")
        for name, durations in (
            ("as NCCL tells", reported_s(operations)),
            ("as perfd times", timed.get(rank, np.zeros(0))),
        ):
            found = aligned(profile, recorded(operations, durations))
            whole &= found is not None
            print(f"  {name:15} {_errors(profile, found)}")
    return whole


def _errors(profile: Kernels, found: Kernels | None) -> str:
    if found is None:
        return "they are not there one for one"
    relative = found.durations_s / profile.durations_s - 1
    return (
        f"all there; {np.median(relative):+.2%} in the median,"
        f" {1e3 * found.durations_s.sum():.2f} of {1e3 * profile.durations_s.sum():.2f} ms in sum"
    )


def main() -> int:
    """Run or compare; 0 when every kernel was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train with the plugin and a profile")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--gpus", type=int, default=2)
    run.add_argument("--stages", type=int, default=1)
    run.add_argument("--torchrun", default="torchrun", help="the program")
    again = commands.add_parser("compare", help="compare what a run left")
    again.add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.command == "compare":
        if not (args.folder / OPERATIONS).is_file():
            parser.error(f"{args.folder} has no {OPERATIONS}: name the folder that `run` wrote.")
        return 0 if compare(args.folder) else 1
    args.out.mkdir(parents=True)
    command = [args.torchrun, "--nproc-per-node", str(args.gpus), str(TRAIN), "--steps", "40"]
    command += ["--stages", str(args.stages), "--micro-batch", "2", "--micro-batches", "4"]
    command += ["--profile", str(args.out)]
    code = record(command, args.out / OPERATIONS)
    return code or (0 if compare(args.out) else 1)


if __name__ == "__main__":
    sys.exit(main())
