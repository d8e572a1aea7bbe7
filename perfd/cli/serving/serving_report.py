"""Reports of saved metrics of a serving engine, and of results of its benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path

from perfd_collectors.serving.bench_results import read_results

from perfd.cli.commands.bench_serving import server_of
from perfd.cli.commands.serving import server_document, theory_for
from perfd.cli.serving.serving_sources import read_file
from perfd.formatting import count, duration
from perfd.report.report_model import Report, ReportMetric
from perfd.report.sources.from_serving import report_of_servers

_START_BYTES = 65536
"""Enough of the start of a file to distinguish a benchmark's results from a page of metrics."""
_MAX_BYTES = 256 * 1024 * 1024
"""Largest file of benchmark results, which is read as a whole."""
_BENCHMARK = (b"Serving Benchmark Result", b'"mean_ttft_ms"', b'"median_ttft_ms"')


def serving_report(path: Path, args: argparse.Namespace) -> Report | None:
    """The report of a metrics page or a benchmark's results; None where the file is neither."""
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError:
        # Whoever reads it next says what is wrong.
        return None
    if any(mark in start for mark in _BENCHMARK) and path.stat().st_size <= _MAX_BYTES:
        return _of_benchmark(path, args)
    if b"\n# TYPE " in b"\n" + start:
        return report_of_servers([server_document(read_file(path), args)], kind="Server")
    return None


def _of_benchmark(path: Path, args: argparse.Namespace) -> Report | None:
    results = read_results(path.read_text(encoding="utf-8", errors="replace"))
    if not results:
        return None
    theory = theory_for(args, None)
    source = path.name
    totals = [
        ReportMetric(name=name, value=value, source=source)
        for result in results
        for name, value in (
            ("Completed requests", count(result.completed_requests)),
            ("Failed requests", count(result.failed_requests)),
            ("Duration", duration(result.duration_s)),
            ("Requests/s", count(result.requests_per_s)),
        )
    ]
    servers = [server_of(source, result, theory) for result in results]
    return report_of_servers(servers, kind="Benchmark", more=totals)
