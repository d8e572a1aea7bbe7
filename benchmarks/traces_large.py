"""Time and memory to read traces of a gigabyte: two of PyTorch and an export of Nsight Systems.

    python -m benchmarks.traces_large [--gigabytes 1] [--shared DIR] [--json]

One of PyTorch is mostly Python stacks, the other kernels alone. The export is that of DIR (PERFD_SHARED),
`traces/nsys-pp2dp2.sqlite.gz`, as often in a row as needed. Each is written to a temporary file, then read
and reported by a process of its own, whose peak of resident memory the kernel reports.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

SCHEMA = "perfd.bench.traces_large/1"
_CHILD = """
import re, sys
from pathlib import Path
from perfd.cli import main
code = main(["analyze", sys.argv[1], "--report", sys.argv[2]])
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())
print("peak", int(peak[1]) * 1024)
sys.exit(code)
"""
_PER_KERNEL = {"stacks": 50, "kernels": 0}
"""How many Python functions stand beside a kernel."""
_NSYS = "nsys"
_EVENTS = {
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS",
}  # fmt: skip


def measure(size_bytes: int, export: Path | None = None) -> dict[str, Any]:
    """Seconds and peak memory for each kind of trace of that size."""
    result: dict[str, Any] = {"schema": SCHEMA, "size_bytes": size_bytes}
    with tempfile.TemporaryDirectory() as folder:
        for kind in (*_PER_KERNEL, *([_NSYS] if export else [])):
            path = Path(folder, f"{kind}.sqlite" if kind == _NSYS else f"{kind}.json")
            if kind == _NSYS and export:
                kernels = _repeat(export, path, size_bytes)
            else:
                kernels = _write(path, size_bytes, _PER_KERNEL[kind])
            begin = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", _CHILD, str(path), str(Path(folder, "r.html"))],
                capture_output=True,
                text=True,
                check=True,
            )
            seconds = time.perf_counter() - begin
            peak = re.search(r"peak (\d+)", done.stdout)
            result[kind] = {
                "kernels": kernels,
                "seconds": seconds,
                "peak_bytes": int(peak[1]) if peak else None,
            }
            path.unlink()
    return result


def _repeat(export: Path, path: Path, size_bytes: int) -> int:
    """The export as often in a row as its size needs; how many kernels that has."""
    path.write_bytes(gzip.decompress(export.read_bytes()))
    rounds = max(0, round(size_bytes / path.stat().st_size) - 1)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        span, correlations = 0, 0
        for table in _EVENTS & known:
            (last,) = database.execute(f"SELECT MAX(end) FROM {table}").fetchone()
            span = max(span, last or 0)
            if "correlationId" in _columns_of(database, table):
                (last,) = database.execute(f"SELECT MAX(correlationId) FROM {table}").fetchone()
                correlations = max(correlations, last or 0)
        for table in sorted(_EVENTS & known):
            shifted = {
                "start": f"start + ? * {span}",
                "end": f"end + ? * {span}",
                "correlationId": f"correlationId + ? * {correlations}",
            }
            columns = _columns_of(database, table)
            values = ", ".join(shifted.get(column, column) for column in columns)
            (rows,) = database.execute(f"SELECT MAX(rowid) FROM {table}").fetchone()
            query = f"INSERT INTO {table} SELECT {values} FROM {table} WHERE rowid <= {rows}"
            for number in range(1, rounds + 1):
                database.execute(query, [number] * query.count("?"))
        if "ANALYSIS_DETAILS" in known:
            database.execute(f"UPDATE ANALYSIS_DETAILS SET duration = duration * {rounds + 1}")
        (count,) = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        database.commit()
        return int(count)


def _columns_of(database: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")]


def _write(path: Path, size_bytes: int, stacks: int) -> int:
    """A trace of that size, in PyTorch's spelling; how many kernels it has."""
    function = {
        "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1747): _call_impl",
        "pid": 1, "tid": 1, "ts": 1.5, "dur": 20.25, "args": {"Python id": 17, "Python parent id": 16},
    }  # fmt: skip
    beside = ",\n".join([json.dumps(function, indent=1)] * stacks)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        while file.tell() < size_bytes:
            for _ in range(100):
                events = [json.dumps(event, indent=1) for event in _launch(count)]
                file.write((",\n" if count else "") + ",\n".join([*events, beside] if beside else events))
                count += 1
        file.write("]}")
    return count


def _launch(number: int) -> Iterator[dict[str, Any]]:
    """A kernel and the call that launched it."""
    at_us = 10.0 * number
    yield {
        "ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": at_us + 5.125, "dur": 4.5,
        "name": "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>>",
        "args": {"External id": number, "device": 0, "context": 1, "stream": 7, "correlation": number + 1,
                 "registers per thread": 32, "grid": [1024, 1, 1], "block": [128, 1, 1]},
    }  # fmt: skip
    yield {
        "ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "ts": at_us + 1.5, "dur": 2.25,
        "name": "cudaLaunchKernel", "args": {"External id": number, "cbid": 211, "correlation": number + 1},
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    shared = os.environ.get("PERFD_SHARED")
    parser.add_argument("--shared", type=Path, default=shared and Path(shared))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    export = args.shared / "traces" / "nsys-pp2dp2.sqlite.gz" if args.shared else None
    result = measure(round(args.gigabytes * 1e9), export)
    if args.json:
        print(json.dumps(result))
        return 0
    for kind in (*_PER_KERNEL, _NSYS):
        found = result.get(kind)
        if found is None:
            continue
        print(
            f"{kind:8} {found['kernels']:9,} kernels  {found['seconds']:6.1f} s"
            f"  {found['peak_bytes'] / 1e6:6.0f} MB at most"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
