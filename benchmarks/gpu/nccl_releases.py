"""perfd's plugin in real releases of NCCL: is every operation there, and as long as CUDA's events say.

    python -m benchmarks.gpu.nccl_releases --out FOLDER [--gpus 2] [--non-blocking] LIBNCCL...

Each library (a path of `libnccl.so.2`) does the same collectives, sends and receives on all GPUs
(`nccl_job.py`): of three sizes, on a communicator that is split, from a CUDA graph, and on one that is made
after the first has ended. Needs nothing but the CUDA driver. What lies between an event and its kernel is
taken from the shortest operations of the same kind. Fails when an operation is missing that NCCL announces,
or a duration of 64 MiB is off by more than 5% in the median, and of a send beside a receive by 15%: NCCL
notes when the send has left. Times that perfd does not believe are none. What the plugin recorded is left as
`operations-N.json` beside each rank's calls.
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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from perfd_collectors.nccl.operations import Operations, OperationTiming, Reading, RingBuffers, check_times
from perfd_collectors.nccl.operations.operation_columns import UNKNOWN_NS
from perfd_collectors.nccl.plugin_library import LIBRARY
from perfd_collectors.nccl.segments import FUNCTIONS, Segment, find_segments

from benchmarks.gpu.nccl_job import GRAPH_LAUNCHES, GRAPH_OPERATIONS
from perfd.errors import Unavailable

SCHEMA = "perfd.bench.gpu.nccl_releases/1"
LARGE_BYTES = 64 << 20
MOST_ERROR, MOST_ERROR_OF_PAIRS = 0.05, 0.15
UNANNOUNCED_SINCE = {"Broadcast": 22900}
"""By function, the first release that says nothing of it to a profiler."""
_LIMIT_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one rank. Errors are of durations against CUDA's events, None without any duration."""

    nccl: str
    interface: int
    rank: int
    called: int
    """Operations outside graphs."""
    recorded: int
    missing: Mapping[str, int]
    """By function, how many fewer were recorded than called, of what NCCL announces."""
    unannounced: Mapping[str, int]
    """The same of what it does not."""
    believed: bool
    """Whether the times of all communicators can be those of their operations."""
    from_graphs: int
    """Recorded, of `GRAPH_OPERATIONS` captured and launched `GRAPH_LAUNCHES` times."""
    timing: Mapping[str, int]
    lost: int
    incomplete: int
    dropped: int
    error_ratio: Mapping[str, float | None]
    """By function, the median over those of `LARGE_BYTES`; None without any that is believed."""

    @property
    def sound(self) -> bool:
        """Whether all is there, and as long as it was."""
        near = all(
            error is None or abs(error) <= (MOST_ERROR_OF_PAIRS if name in {"Send", "Recv"} else MOST_ERROR)
            for name, error in self.error_ratio.items()
        )
        return near and not (self.missing or self.lost or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """All that the plugin wrote of one process."""

    interface: int
    operations: Operations
    lost: int
    incomplete: int
    dropped: int


def judge(written: Mapping[str, Any], rank: int, recorded: Recorded) -> Verdict:
    """One rank's operations against the calls that it made."""
    calls = [call for call in written["calls"] if call["phase"] != "graph"]
    mixed = check_times(recorded.operations).communicators
    communicators = recorded.operations.column("communicator")
    believed = recorded.operations.without_times(np.isin(communicators, sorted(mixed)))
    functions = believed.column("function")
    of_function = {
        name: _Pairs.of(
            [call for call in calls if call["function"] == name],
            believed.select(functions == FUNCTIONS.index(name)),
        )
        for name in dict.fromkeys(call["function"] for call in calls)
    }
    missing = {name: pairs.missing for name, pairs in of_function.items() if pairs.missing}
    unannounced = {name for name, since in UNANNOUNCED_SINCE.items() if written["nccl"] >= since}
    return Verdict(
        nccl=release(written["nccl"]),
        interface=recorded.interface,
        rank=rank,
        called=len(calls),
        recorded=sum(len(pairs.operations) for pairs in of_function.values()),
        missing={name: count for name, count in missing.items() if name not in unannounced},
        unannounced={name: count for name, count in missing.items() if name in unannounced},
        believed=not mixed,
        from_graphs=sum(pairs.from_graphs for pairs in of_function.values()),
        timing=Counter(
            OperationTiming(timing).name.lower()
            for pairs in of_function.values()
            for timing in pairs.operations.column("timing")
        ),
        lost=recorded.lost,
        incomplete=recorded.incomplete,
        dropped=recorded.dropped,
        error_ratio={name: pairs.error_ratio() for name, pairs in of_function.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """The calls of one function, and what was recorded of it outside graphs, each in order."""

    calls: Sequence[Mapping[str, Any]]
    operations: Operations
    from_graphs: int

    @classmethod
    def of(cls, calls: Sequence[Mapping[str, Any]], operations: Operations) -> _Pairs:
        """Both come in the order of their phases: what graphs launched is before the last."""
        ordered = np.argsort(operations.column("start_monotonic_ns"), kind="stable")
        before = sum(1 for call in calls if call["phase"] != "again")
        extra = max(0, len(ordered) - len(calls))
        called = np.delete(ordered, slice(before, before + extra))
        return cls(calls=calls, operations=operations.select(called), from_graphs=extra)

    @property
    def missing(self) -> int:
        """Calls without a record."""
        return len(self.calls) - len(self.operations)

    def error_ratio(self) -> float | None:
        """Of the longest; the n-th call is its n-th record."""
        if self.missing:
            return None
        timed = [
            (call["bytes"], call["event_s"], duration_ns / 1e9)
            for call, duration_ns in zip(self.calls, self.operations.durations_ns.tolist(), strict=True)
            if call["event_s"] and duration_ns != UNKNOWN_NS
        ]
        shortest = min((size for size, _, _ in timed), default=0)
        around = [event_s - lasts_s for size, event_s, lasts_s in timed if size == shortest < LARGE_BYTES]
        around_s = statistics.median(around) if around else 0.0
        errors = [
            (lasts_s + around_s) / event_s - 1 for size, event_s, lasts_s in timed if size >= LARGE_BYTES
        ]
        return statistics.median(errors) if errors else None


def release(number: int) -> str:
    """As people write it: 22809 is 2.28.9."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def run(library: Path, folder: Path, gpus: int, environment: Mapping[str, str]) -> list[Verdict]:
    """All ranks of one release. Raises `RuntimeError` when one failed, with what it printed."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="perfd-bench-") as shared:
        ranks = []
        for rank in range(gpus):
            command = [sys.executable, "-m", "benchmarks.gpu.nccl_job", "--library", str(library)]
            command += ["--rank", str(rank), "--ranks", str(gpus), "--exchange", str(folder)]
            chosen = {
                **environment,
                "NCCL_PROFILER_PLUGIN": str(LIBRARY),
                "PERFD_NCCL_DIR": shared,
                "RANK": str(rank),
                "WORLD_SIZE": str(gpus),
            }
            log = (folder / f"rank-{rank}.log").open("wb")
            ranks.append(subprocess.Popen(command, env=chosen, stdout=log, stderr=log))
        recorded = _read_until_ended(ranks, Path(shared))
    verdicts = []
    for rank, process in enumerate(ranks):
        if process.returncode:
            printed = (folder / f"rank-{rank}.log").read_text(errors="replace").splitlines()[-4:]
            message = f"rank {rank} ended with {process.returncode}: {' / '.join(printed)}"
            raise RuntimeError(message)
        if rank not in recorded:
            message = f"rank {rank} recorded nothing: NCCL did not load the plugin."
            raise RuntimeError(message)
        kept = [
            {"function": FUNCTIONS[one.function], **one._asdict()} for one in recorded[rank].operations.rows()
        ]
        (folder / f"operations-{rank}.json").write_text(json.dumps(kept))
        written = json.loads((folder / f"rank-{rank}.json").read_text())
        verdicts.append(judge(written, rank, recorded[rank]))
    return verdicts


def _read_until_ended(ranks: Sequence[subprocess.Popen[bytes]], shared: Path) -> dict[int, Recorded]:
    segments: dict[Path, tuple[Segment, RingBuffers]] = {}
    read: dict[Path, list[Reading]] = {}
    deadline_s = time.monotonic() + _LIMIT_S
    running = True
    while running:
        running = any(process.poll() is None for process in ranks)
        if running and time.monotonic() > deadline_s:
            for process in ranks:
                process.kill()
        for path in find_segments(shared):
            if path not in segments:
                try:
                    segment = Segment(path)
                except Unavailable:
                    continue
                segments[path] = segment, RingBuffers(segment)
        for path, (_, rings) in segments.items():
            read.setdefault(path, []).append(rings.read())
        time.sleep(_POLL_S)
    of_rank: dict[int, list[Path]] = {}
    for path, (segment, _) in segments.items():
        if segment.process.rank is not None:
            of_rank.setdefault(segment.process.rank, []).append(path)
    return {
        rank: _joined([(segments[path][0], read[path]) for path in paths]) for rank, paths in of_rank.items()
    }


def _joined(parts: Sequence[tuple[Segment, Sequence[Reading]]]) -> Recorded:
    """Of one process: NCCL may unload a plugin with its last communicator, which then begins anew."""
    counters = [segment.counters() for segment, _ in parts]
    readings = [reading for _, read in parts for reading in read]
    return Recorded(
        interface=parts[0][0].process.profiler_version,
        operations=Operations.joined([reading.operations for reading in readings]),
        lost=sum(reading.lost for reading in readings),
        incomplete=sum(counted.incomplete for counted in counters),
        dropped=sum(counted.dropped for counted in counters),
    )


def show(verdict: Verdict) -> str:
    """One line."""
    errors = ", ".join(
        f"{function} {'-' if error is None else f'{error:+.1%}'}"
        for function, error in verdict.error_ratio.items()
    )
    missing = f", missing {dict(verdict.missing)}" if verdict.missing else ""
    missing += f", not announced {dict(verdict.unannounced)}" if verdict.unannounced else ""
    missing += "" if verdict.believed else ", times not believed"
    return (
        f"{verdict.nccl:8} interface {verdict.interface} rank {verdict.rank}: {verdict.recorded} of"
        f" {verdict.called}{missing}, graphs {verdict.from_graphs} of {GRAPH_OPERATIONS}x{GRAPH_LAUNCHES},"
        f" {dict(verdict.timing)}, lost {verdict.lost}, incomplete {verdict.incomplete},"
        f" dropped {verdict.dropped}; {errors}"
    )


def main() -> int:
    """Try each library; 1 when one is not sound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", type=Path, nargs="+", metavar="LIBNCCL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--non-blocking", action="store_true", help="communicators that do not block")
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    args = parser.parse_args()
    environment = {**os.environ, **({"NCCL_COMM_BLOCKING": "0"} if args.non_blocking else {})}
    verdicts, failed = [], []
    for number, library in enumerate(args.libraries):
        try:
            found = run(library, args.out / str(number), args.gpus, environment)
        except RuntimeError as error:
            failed.append(f"{library}: {error}")
            print(failed[-1], file=sys.stderr, flush=True)
            continue
        verdicts += found
        if not args.json:
            print(*map(show, found), sep="\n", flush=True)
    if args.json:
        ranks = [asdict(verdict) for verdict in verdicts]
        print(json.dumps({"schema": SCHEMA, "ranks": ranks, "failed": failed}, indent=1))
    return 1 if failed or not all(verdict.sound for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
