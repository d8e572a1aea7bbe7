"""Time to read and report real captures, beside plain decoding, Nsight Systems and HolisticTraceAnalysis.

    python -m benchmarks.traces --shared DIR [--runs 5] [--hta PYTHON] [--nsys NSYS] [--json]

DIR holds `traces/kineto-pp4_few/*.json.gz` and `traces/nsys-pp2dp2.sqlite.gz`; PERFD_SHARED names it too.
Plain decoding is gunzip and orjson (`pip install --group bench`), for the export gunzip and fetching every
event's row with sqlite3. PYTHON is the interpreter of an environment with HolisticTraceAnalysis, which is
asked for its temporal breakdown and its overlap. All are run in turn, and the best run of each counts.
With NSYS, `perfd analyze` and `nsys stats` are run as commands too, by turns and on the same unpacked export:
their medians count, and Python compiles nothing, as after an installation.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from perfd.errors import PerfdError
from perfd.report.render.html import to_html
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.breakdown import launching_call
from perfd.trace.diagnosis import TraceAnalysis, analyse, diagnose, to_json
from perfd.trace.model.intervals import Coverage
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.readers.trace_files import read_traces

SCHEMA = "perfd.bench.traces/1"
_HTA = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
best, rows = None, None
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter()
    analysis = TraceAnalysis(trace_files={at: path for at, path in enumerate(sys.argv[2:])}, trace_dir="/")
    temporal = analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    took = time.perf_counter() - begin
    best = took if best is None else min(best, took)
print("\\n" + json.dumps({"seconds": best, "temporal": temporal.to_dict("records"),
                        "overlap": overlap.to_dict("records")}))
"""


def measure(
    shared: Path, runs: int = 5, *, hta: str | None = None, nsys: str | None = None
) -> dict[str, Any]:
    """Best seconds of each way to read each set, and the numbers that two tools both give."""
    kineto = sorted((shared / "traces" / "kineto-pp4_few").glob("*.json.gz"))
    export = shared / "traces" / "nsys-pp2dp2.sqlite.gz"
    ways: dict[str, Callable[[], object]] = {
        "kineto_gunzip_orjson_s": lambda: _decoded(kineto),
        "kineto_perfd_s": lambda: _reported(kineto),
        "nsys_gunzip_sqlite_s": lambda: _fetched(export),
        "nsys_perfd_s": lambda: _reported([export]),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(runs):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - begin)
    result: dict[str, Any] = {"schema": SCHEMA, "runs": runs, "cores": os.cpu_count(), **best}
    result["kineto_ratio"] = best["kineto_perfd_s"] / best["kineto_gunzip_orjson_s"]
    result["nsys_ratio"] = best["nsys_perfd_s"] / best["nsys_gunzip_sqlite_s"]
    result["nsys_events"] = _fetched(export)
    if hta:
        found = _holistic(hta, runs, kineto)
        result |= {"kineto_hta_s": found["seconds"], "hta": found["temporal"]}
        result["perfd_as_hta_cuts"] = _as_hta_cuts(kineto)
    if nsys:
        result |= _commands(nsys, export, runs)
    return result


def _decoded(paths: Sequence[Path]) -> int:
    import orjson  # noqa: PLC0415 - Only this benchmark needs it.

    return sum(len(orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) for path in paths)


def _fetched(export: Path) -> int:
    """Rows of the tables of events, fetched one table after the other."""
    tables = "SELECT name FROM sqlite_master WHERE name GLOB 'CUPTI_ACTIVITY_KIND_*' OR name = 'NVTX_EVENTS'"
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as database:
        database.write(gzip.decompress(export.read_bytes()))
        database.flush()
        with closing(sqlite3.connect(database.name)) as reader:
            names = reader.execute(tables).fetchall()
            return sum(len(reader.execute(f"SELECT * FROM {name}").fetchall()) for (name,) in names)


def _analysed(paths: Sequence[Path]) -> TraceAnalysis:
    return analyse(read_traces(paths))


def _reported(paths: Sequence[Path]) -> int:
    """What `perfd analyze --json --report r.html` does."""
    analysis = _analysed(paths)
    diagnosis = diagnose(analysis)
    text = json.dumps(to_json(analysis, diagnosis))
    return len(text) + len(to_html(report_of_trace(analysis, diagnosis)))


def _holistic(python: str, runs: int, paths: Sequence[Path]) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", _HTA, str(runs), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _as_hta_cuts(paths: Sequence[Path]) -> list[dict[str, float]]:
    """The same numbers over what HolisticTraceAnalysis keeps.

    It drops the last step by the launching call, but keeps that step's first operation.
    """
    rows = []
    for rank in _analysed(paths).ranks:
        trace = rank.timeline.trace
        call = launching_call(trace)
        launched = np.where(call >= 0, trace.calls.start_ns[call], -1)
        first, last = trace.steps[0].start_ns, trace.steps[-1].start_ns
        kept = (launched >= first) & (launched < last)
        kept[np.flatnonzero(launched >= last)[:1]] = True
        start, end = trace.operations.start_ns[kept], trace.operations.end_ns[kept]
        computing = trace.operations.kind[kept] == OperationKind.COMPUTE
        span_ns = int(end.max() - start.min())
        rows.append(
            {
                "rank": rank.rank,
                "idle_us": (span_ns - Coverage(start, end).total_ns) / 1e3,
                "compute_us": Coverage(start[computing], end[computing]).total_ns / 1e3,
            }
        )
    return rows


def _commands(nsys: str, export: Path, runs: int) -> dict[str, float]:
    """Seconds of `nsys stats` and of `perfd analyze` on an export, and `perfd analyze --json`: medians."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "capture.sqlite")
        database.write_bytes(gzip.decompress(export.read_bytes()))
        analyze = [sys.executable, "-m", "perfd", "analyze", str(database)]
        # Its own choice of reports: their names have changed with versions, and an unknown one is no error.
        ways = {
            "nsys_stats_command_s": [nsys, "stats", str(database)],
            "nsys_perfd_command_s": analyze,
            "nsys_perfd_json_command_s": [*analyze, "--json"],
        }
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        compiled["PYTHONPYCACHEPREFIX"] = str(Path(folder, "compiled"))
        took: dict[str, list[float]] = {name: [] for name in ways}
        for run in range(runs + 1):
            for name, command in ways.items():
                begin = time.perf_counter()
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
                # The first run only compiles.
                if run:
                    took[name].append(time.perf_counter() - begin)
                if name == "nsys_stats_command_s" and "Kernel Summary" not in done.stdout:
                    said = done.stderr.strip() or done.stdout[:200]
                    raise PerfdError(f"{nsys} stats made no summary of kernels: {said}")
        return {name: statistics.median(times) for name, times in took.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("PERFD_SHARED"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--nsys", default=shutil.which("nsys"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    if args.shared is None:
        parser.error("name the directory of the captures with --shared or PERFD_SHARED")
    result = measure(Path(args.shared), args.runs, hta=args.hta, nsys=args.nsys)
    if args.json:
        print(json.dumps(result, indent=1))
        return 0
    for name, value in result.items():
        if isinstance(value, float):
            print(f"{name:28} {value:8.3f}")
        elif name == "nsys_events":
            print(f"{name:28} {value:8,}")
    for theirs, ours in zip(result.get("hta", ()), result.get("perfd_as_hta_cuts", ()), strict=False):
        print(
            f"rank {ours['rank']}: idle {theirs['idle_time(us)']:.1f} us there, {ours['idle_us']:.1f} here;"
            f" compute {theirs['compute_time(us)']:.1f} there, {ours['compute_us']:.1f} here"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
