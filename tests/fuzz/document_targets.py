"""Targets that people or benchmarks write: results of bench_serving, configurations, and NVTX ranges."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
from perfd_collectors.serving.bench_results import read_results

from perfd.aggregator.history.sqlite.page_format import DatabasePages, page_layout
from perfd.aggregator.history.sqlite.salvaged_rows import salvaged_pages
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA
from perfd.aggregator.history.sqlite.wal_frames import committed_pages
from perfd.aggregator.web_api import PAGE_FILE, SavedRun
from perfd.cli.commands.bench_serving import document
from perfd.config.agent_config import AgentConfig
from perfd.config.aggregator_config import AggregatorConfig
from perfd.config.config_file import parse
from perfd.report.comparison.bench_runs import measures_of_benchmarks
from perfd.session.session_config import SessionConfig
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import TABLES, tables_of
from tests.support.traces import NsysExport

_SMALL_PAGE_BYTES = 512
_CONFIGURATIONS = (AgentConfig, AggregatorConfig, SessionConfig)
_WIDTHS = {"NVTX_EVENTS": 8, "NVTX_PAYLOAD_SCHEMA_ENTRIES": 9}
"""Columns of the tables that are fuzzed."""


def history_files() -> list[bytes]:
    """A history in small pages: with trees of several levels, free pages, and rows of many pages."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(f"PRAGMA page_size = {_SMALL_PAGE_BYTES}; {SCHEMA}")
        for n in range(60):
            step = ("j", 1, n, 1e9 + n, 0.5, 1, 0, None, 1e5, None, 8, "{}")
            connection.execute(f"INSERT INTO steps VALUES ({', '.join('?' * len(step))})", step)
            connection.execute("INSERT INTO events VALUES ('j', 1, 'n', ?, 'k', ?)", (n, "b" * n))
        connection.execute("INSERT INTO engine VALUES (1, ?)", (b"e" * 3_000,))
        connection.execute("DELETE FROM steps WHERE step < 20")
        connection.commit()
        return [connection.serialize()]


def read_history(data: bytes) -> None:
    """Whatever is read can be written to a new history."""
    size, usable = page_layout(data[:100])
    reader = DatabasePages(
        lambda number: data[(number - 1) * size : number * size], len(data) // size, size, usable
    )
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        for page in salvaged_pages(reader):
            places = ", ".join("?" * len(page.rows[0]))
            connection.executemany(f"INSERT OR IGNORE INTO {page.table} VALUES ({places})", page.rows)
    committed_pages(lambda offset, count: data[offset : offset + count], size)


def saved_pages() -> list[bytes]:
    """Pages of a run, as `perfd run` saves them."""
    lists = {name: [] for name in ("servers", "alerts", "agents", "nodes", "captures")}
    job = {
        "overview": {"name": "j"},
        "summary": {"name": "j"},
        "steps": [{"step": 1}],
        "series": {"step": [1]},
    }
    fleet = {"jobs": [{"name": "j"}], "alerts": [], "agents": {"connected": 1}, "servers": {}}
    page = {"schema": "perfd.page/1", "saved_unix_s": 1.5e9, "fleet": fleet, "jobs": {"j": job}, **lists}
    return [json.dumps(page).encode()]


def read_saved_pages(data: bytes) -> None:
    """One page, and with a sound one beside it."""
    with tempfile.TemporaryDirectory() as name:
        folders = Path(name) / "a", Path(name) / "b"
        for folder, content in zip(folders, (data, *saved_pages()), strict=True):
            folder.mkdir()
            (folder / PAGE_FILE).write_bytes(gzip.compress(content, 1))
        SavedRun(folders[0])
        SavedRun(*folders)


def bench_results() -> list[bytes]:
    """A printed result, and one from a file."""
    numbers = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": 4.0,
        "max_concurrency": 16,
        "completed": 64,
        "duration": 31.5,
        "total_input_tokens": 65_536,
        "total_output_tokens": 16_384,
        "request_throughput": 2.03,
        "output_throughput": 520.1,
        "mean_ttft_ms": 80.5,
        "median_ttft_ms": 71.2,
        "p99_ttft_ms": 190.0,
        "mean_tpot_ms": 9.5,
        "median_tpot_ms": 9.1,
        "median_itl_ms": 8.8,
        "itls": [[0.01, 0.02], [0.01]],
    }
    rows = "\n".join(f"{name:<40} {value}" for name, value in _PRINTED.items())
    printed = f"============ Serving Benchmark Result ============\n{rows}\n{'=' * 50}\n"
    return [printed.encode(), json.dumps(numbers).encode() + b"\n"]


_PRINTED = {
    "Backend:": "vllm",
    "Traffic request rate:": "inf",
    "Max request concurrency:": "16",
    "Successful requests:": "64",
    "Benchmark duration (s):": "31.50",
    "Total input tokens:": "65536",
    "Total generated tokens:": "16384",
    "Request throughput (req/s):": "2.03",
    "Output token throughput (tok/s):": "520.10",
    "Mean TTFT (ms):": "80.50",
    "Median TTFT (ms):": "71.20",
    "P99 TTFT (ms):": "190.00",
    "Median TPOT (ms):": "9.10",
    "Median ITL (ms):": "8.80",
}


def read_bench(data: bytes) -> None:
    """Read results as `perfd bench-serving --json` and `perfd compare` do."""
    entries = [document(result, None) for result in read_results(data.decode("utf-8", "replace"))]
    if entries:
        json.dumps(entries, allow_nan=False)
        for run in measures_of_benchmarks(entries, entries, ("a", "b")):
            for measure in run.measures:
                assert measure.value is None or math.isfinite(measure.value)


def configurations(folder: Path) -> list[bytes]:
    """The shipped files without comments, for speed, each after a digit for its kind."""
    texts = [(folder / f"{name}.yaml").read_bytes() for name in ("agent", "aggregator", "session")]
    lines = [[line.partition(b" #")[0] for line in text.splitlines()] for text in texts]
    return [
        b"%d" % kind + b"\n".join(line for line in text if not line.lstrip().startswith(b"#"))
        for kind, text in enumerate(lines)
    ]


def read_configuration(data: bytes) -> None:
    """Read a text as the kind of configuration that its first byte names."""
    kind = _CONFIGURATIONS[(data[0] if data else 0) % len(_CONFIGURATIONS)]
    parse(data[1:].decode("utf-8", "replace"), kind)


def nvtx_rows() -> bytes:
    """NVTX ranges of a program and of NCCL with payloads: rows of an export, one per line."""
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(_export(Path(folder)))) as database:
        rows = [
            [{"hex": value.hex()} if isinstance(value, bytes) else value for value in row]
            for table in _WIDTHS
            for row in database.execute(f"SELECT * FROM {table}")
        ]
    return "\n".join(map(json.dumps, rows)).encode()


def read_nvtx(data: bytes) -> None:
    """Put rows into an export, of whatever types they are, and analyze it; other lines are left out."""
    rows: list[list[object]] = []
    for line in data.splitlines():
        with suppress(msgspec.DecodeError, ValueError, RecursionError):
            rows.append([_value(one) for one in msgspec.json.decode(line, type=list[Any])])
    with tempfile.TemporaryDirectory() as folder:
        path = _export(Path(folder))
        with closing(sqlite3.connect(path)) as database:
            for name, width in _WIDTHS.items():
                database.execute(f"DELETE FROM {name}")
                values = ", ".join("?" * width)
                database.executemany(
                    f"INSERT INTO {name} VALUES ({values})", [row for row in rows if len(row) == width]
                )
            database.commit()
        traces = read_traces([path], detailed=True)
        analyse(traces)
        tables_of(traces, list(TABLES))


def _value(value: object) -> object:
    """A value of SQLite: a number, a text, NULL, or bytes."""
    if isinstance(value, dict):
        return bytes.fromhex(str(value.get("hex", "")))
    if isinstance(value, int) and abs(value) >= 2**63:
        return 2.0**64 if value > 0 else -(2.0**64)
    return value if isinstance(value, int | float | str | None) else str(value)


def _export(folder: Path) -> Path:
    export = NsysExport(folder / "t.sqlite")
    for step in range(3):
        at = step * 1_000_000
        export.nvtx(f"step {step}", at, at + 900_000)
        export.nvtx("forward", at + 1_000, at + 500_000)
        export.kernel("gemm", at + 10_000, at + 400_000, launched=at + 8_000)
        export.nccl("ncclAllReduce", at + 3_000, at + 9_100, (0xABC, 4096, 0))
        export.kernel("ncclDevKernel_AllReduce", at + 400_000, at + 800_000, launched=at + 9_000)
    export.captured(3_000_000)
    return export.close()
