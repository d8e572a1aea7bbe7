"""`perfd trace table` and `perfd roofline --ncu` beside what other tools say of the same files.

    python -m benchmarks.trace_tables --shared DIR [--nsys NSYS] [--hta PYTHON] [--xprof PYTHON] [--json]

DIR holds `traces/kineto-pp4_few/*.json.gz`, `traces/nsys-*.sqlite.gz`, `traces/jax-*/*.xplane.pb.gz` and
`samples/ncu/*-details.csv`; PERFD_SHARED names it too. The captures of tests are compared as well. Reports of
`nsys stats` were recorded (2025.3.1); with NSYS they are made now. The details page of Nsight Compute says
itself what perfd shows. Each PYTHON is the interpreter of an environment with HolisticTraceAnalysis or
xprof, which is TensorBoard's plugin for JAX. For each table it prints how many numbers
both have, how many differ by more than 0.1%, and the largest difference; what is compared
stands beside each comparison below.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trace_peers.ncu_details import beside_details
from benchmarks.trace_peers.nsys_stats import RECORDED, beside_nsys_stats, run_reports
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import needs_spans, tables_of

SCHEMA = "perfd.bench.trace_tables/1"
_ALIKE_RATIO = 1e-3
_Numbers = dict[str, float]
_HTA = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={at: path for at, path in enumerate(sys.argv[1:])}, trace_dir="/")
ranks = list(range(len(sys.argv) - 1))
found = {}
_, kernels = analysis.get_gpu_kernel_breakdown(
    visualize=False, num_kernels=10_000, duration_ratio=1.0, include_memory_kernels=True)
found["kernels"] = kernels.to_dict("records")
queue = analysis.get_queue_length_summary(ranks=ranks).reset_index()
queue.columns = [str(one[-1] or one[0]) if isinstance(one, tuple) else str(one) for one in queue.columns]
found["queue"] = queue.to_dict("records")
launches = analysis.get_cuda_kernel_launch_stats(
    ranks=ranks, visualize=False, include_memory_events=False)
found["launches"] = {
    str(rank): {
        "count": len(frame),
        "short": int((frame.gpu_duration < frame.cpu_duration).sum()),
        "slow": int((frame.cpu_duration > 50).sum()),
        "late": int((frame.launch_delay > 100).sum()),
    } for rank, frame in launches.items()
}
idle = [analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)[0] for rank in ranks]
found["idle"] = [row for frame in idle for row in frame.to_dict("records")]
found["seconds"] = time.perf_counter() - begin
print("\\n" + json.dumps(found, default=float))
"""
_XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
found = {}
for tool in ("kernel_stats", "hlo_stats"):
    table = json.loads(raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], tool, {})[0])
    names = [column["id"] for column in table["cols"]]
    found[tool] = [dict(zip(names, [cell["v"] for cell in row["c"]])) for row in table["rows"]]
print("\\n" + json.dumps(found))
"""
_FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "traces"


def measure(
    shared: Path, nsys: str | None = None, hta: str | None = None, xprof: str | None = None
) -> dict[str, Any]:
    """What both tools say of each table, and how long each took."""
    result: dict[str, Any] = {"schema": SCHEMA, "comparisons": []}
    for captures in (shared / "traces", _FIXTURES):
        for packed in sorted(captures.glob("nsys-*.sqlite.gz")):
            for name, ours, theirs in reports_beside_tables(packed, nsys):
                result["comparisons"].append(compared(f"{packed.name} {name}", "nsys stats", ours, theirs))
    for page in sorted((shared / "samples" / "ncu").glob("*-details.csv")):
        result["comparisons"].append(compared(f"{page.name} kernels", "ncu", *beside_details(page)))
    if hta:
        packed_traces = sorted((shared / "traces" / "kineto-pp4_few").glob("*.json.gz"))
        with tempfile.TemporaryDirectory() as folder:
            paths = [_for_both(path, Path(folder)) for path in packed_traces]
            begin = time.perf_counter()
            rows = _rows_of_tables(paths, ("kernels", "copies", "queue", "idle", "launches"))
            result["perfd_s"] = time.perf_counter() - begin
            found = _holistic(hta, paths)
        result["hta_s"] = found["seconds"]
        for name, ours, theirs in _beside_hta(rows, found):
            result["comparisons"].append(compared(f"kineto-pp4_few {name}", "HTA", ours, theirs))
    if xprof:
        for packed in (
            *sorted((shared / "traces").glob("jax-*/*.xplane.pb.gz")),
            *sorted(_FIXTURES.glob("*.xplane.pb.gz")),
        ):
            for name, ours, theirs in _beside_xprof(xprof, packed):
                result["comparisons"].append(compared(f"{packed.name} {name}", "xprof", ours, theirs))
    return result


def reports_beside_tables(
    packed: Path, nsys: str | None = None
) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """What `beside_nsys_stats` says of a packed export, with reports made by `nsys` or recorded."""
    capture = packed.name.removesuffix(".sqlite.gz")
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder, "export.sqlite")
        export.write_bytes(gzip.decompress(packed.read_bytes()))
        if nsys:
            run_reports(nsys, export, Path(folder), capture)
        yield from beside_nsys_stats(export, Path(folder) if nsys else _FIXTURES / RECORDED, capture)


def _beside_xprof(python: str, packed: Path) -> Iterator[tuple[str, _Numbers, _Numbers]]:
    """Microseconds and counts of kernels, and of operations of HLO, over all GPUs.

    Copies and fills are no kernels of xprof.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.xplane.pb")
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        done = subprocess.run(
            [python, "-c", _XPROF, str(path)], capture_output=True, text=True, check=True, cwd=folder
        )
        found = json.loads(done.stdout.splitlines()[-1])
        traces = read_traces([path])
    theirs: dict[str, list[float]] = {}
    for row in found["kernel_stats"]:
        times = (row["total_duration_us"], row["min_duration_us"], row["max_duration_us"])
        _add(theirs, row["kernel_name"], times, row["occurrences"])
    kernels: dict[str, list[float]] = {}
    operations: dict[str, list[float]] = {}
    for trace in traces:
        times_us = ((trace.operations.end_ns - trace.operations.start_ns) / 1e3).tolist()
        hlo = trace.hlo.name.tolist() if trace.hlo else [-1] * len(times_us)
        for name, of, time_us in zip(trace.operations.name.tolist(), hlo, times_us, strict=True):
            if not trace.names[name].startswith("Mem"):
                _add(kernels, trace.names[name], (time_us,) * 3, 1)
            if trace.hlo and of >= 0:
                _add(operations, trace.hlo.names[of], (time_us,) * 3, 1)
    yield "kernels", _flat(kernels), _flat(theirs)
    by_operation = {
        f"{row['hlo_op_name']} {name}": row[column]
        for row in found["hlo_stats"]
        for name, column in (("count", "occurrences"), ("total", "total_time"))
    }
    yield (
        "operations",
        {key: value for key, value in _flat(operations).items() if key.endswith(("count", "total"))},
        by_operation,
    )


def _for_both(packed: Path, folder: Path) -> Path:
    """A copy without what HTA leaves out.

    That is the last step of those that are marked, and launches by calls into the driver (as of Triton and
    cuBLAS' newest kernels), which it does not find in queues, launches and gaps.
    """
    trace = json.loads(gzip.decompress(packed.read_bytes()))
    by_driver = {
        event["args"]["correlation"] for event in trace["traceEvents"] if event.get("cat") == "cuda_driver"
    }
    kept = [
        event
        for event in trace["traceEvents"]
        if "ProfilerStep" not in event["name"]
        and event.get("args", {}).get("correlation") not in by_driver
        and not (event.get("cat") == "ac2g" and event.get("id") in by_driver)
    ]
    path = folder / packed.name
    path.write_bytes(gzip.compress(json.dumps(trace | {"traceEvents": kept}).encode(), 1))
    return path


def _rows_of_tables(paths: Sequence[Path], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    traces = read_traces(paths, detailed=True, spans=needs_spans(names))
    for table in tables_of(traces, names):
        keys = [column.name for column in table.columns]
        found[table.name] = [dict(zip(keys, row, strict=True)) for row in table.rows]
    return found


def _add(into: dict[str, list[float]], key: str, times: tuple[float, float, float], count: int) -> None:
    total, least, most = times
    row = into.setdefault(key, [0.0, float("inf"), 0.0, 0.0])
    row[0] += total
    row[1], row[2] = min(row[1], least), max(row[2], most)
    row[3] += count


def _flat(rows: Mapping[str, Sequence[float]]) -> _Numbers:
    names = ("total", "min", "max", "count")
    return {
        f"{key} {name}": value for key, row in rows.items() for name, value in zip(names, row, strict=True)
    }


def _beside_hta(
    rows: Mapping[str, Sequence[dict[str, Any]]], found: Mapping[str, Any]
) -> Iterator[tuple[str, _Numbers, _Numbers]]:
    """Microseconds and counts."""
    ours: _Numbers = {}
    for row in (*rows["kernels"], *rows["copies"]):
        name = str(row.get("kernel") or row["operation"])
        for column in ("total", "min", "max", "mean", "deviation"):
            if column != "deviation" or row["count"] > 1:
                ours[f"{row['rank']} {name} {column}"] = row[f"{column}_s"] * 1e6
    columns = {"sum": "total", "min": "min", "max": "max", "mean": "mean", "stddev": "deviation"}
    theirs = {
        f"{int(row['rank'])} {row['name']} {name}": float(value)
        for row in found["kernels"]
        for column, name in columns.items()
        if (value := row.get(f"{column} (us)", row.get(column))) is not None
    }
    yield "kernels", ours, theirs
    yield (
        "queue",
        {
            f"{row['rank']} {row['stream']} {name}": row[key]
            for row in rows["queue"]
            for name, key in (("count", "changes_count"), ("mean", "mean_length"), ("max", "max_length"))
        },
        {
            f"{int(row['rank'])} {int(row['stream'])} {name}": float(row[name])
            for row in found["queue"]
            for name in ("count", "mean", "max")
        },
    )
    yield (
        "idle",
        {
            f"{row['rank']} {row['stream']} {name}": row[f"{name}_s"] * 1e6
            for row in rows["idle"]
            for name in ("host_wait", "kernel_wait", "other")
        },
        {
            f"{int(row['rank'])} {int(row['stream'])} {row['idle_category']}": float(row["idle_time"])
            for row in found["idle"]
        },
    )
    counts = {"count": "count", "short": "short_count", "slow": "slow_call_count", "late": "late_count"}
    summed: _Numbers = {}
    for row in rows["launches"]:
        if row["operation"].startswith("Mem"):
            continue
        for name, key in counts.items():
            at = f"{row['rank']} {name}"
            summed[at] = summed.get(at, 0) + row[key]
    yield (
        "launches",
        summed,
        {f"{rank} {name}": float(row[name]) for rank, row in found["launches"].items() for name in counts},
    )


def compared(table: str, tool: str, ours: _Numbers, theirs: _Numbers) -> dict[str, Any]:
    """How many numbers both have, which only one has, and how many differ."""
    common = sorted(ours.keys() & theirs.keys())
    off = {
        key: abs(ours[key] - theirs[key]) / max(abs(theirs[key]), 1e-9)
        for key in common
        if abs(ours[key] - theirs[key]) > _ALIKE_RATIO * max(abs(theirs[key]), 1e-9)
    }
    worst = max(off, key=lambda key: off[key], default=None)
    return {
        "table": table,
        "tool": tool,
        "common": len(common),
        "only_perfd": len(ours.keys() - theirs.keys()),
        "only_other": len(theirs.keys() - ours.keys()),
        "different": len(off),
        "worst": None if worst is None else {"number": worst, "perfd": ours[worst], tool: theirs[worst]},
    }


def _holistic(python: str, paths: Sequence[Path]) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", _HTA, *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was compared."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("PERFD_SHARED")
    parser.add_argument("--shared", type=Path, default=shared and Path(shared), required=not shared)
    parser.add_argument("--nsys", help="nsys whose reports are compared, instead of recorded ones")
    parser.add_argument("--hta", metavar="PYTHON", help="interpreter with HolisticTraceAnalysis")
    parser.add_argument("--xprof", metavar="PYTHON", help="interpreter with xprof")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    result = measure(args.shared, args.nsys, args.hta, args.xprof)
    if args.json:
        print(json.dumps(result))
        return 0
    for one in result["comparisons"]:
        print(
            f"{one['table']:62} {one['tool']:10} {one['common']:6,} numbers, {one['different']:4} differ,"
            f" only perfd {one['only_perfd']}, only {one['tool']} {one['only_other']}"
            + (f"; most: {one['worst']}" if one["worst"] else "")
        )
    if "hta_s" in result:
        print(f"perfd {result['perfd_s']:.1f} s, HTA {result['hta_s']:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
