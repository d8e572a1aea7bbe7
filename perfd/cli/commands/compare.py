"""`perfd compare`."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from perfd.aggregator.web_api import SavedRun, with_kernels
from perfd.cli.arguments import positive
from perfd.cli.commands.bench_serving import SCHEMA as BENCH_SCHEMA
from perfd.cli.commands.bench_serving import document as document_of_benchmark
from perfd.cli.commands.bench_serving import results_of
from perfd.cli.named_runs import summary_or_path
from perfd.cli.recording_playback import play
from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.cli.traces.analysis_process import run_analysis
from perfd.errors import PerfdError
from perfd.formatting import UNKNOWN, duration
from perfd.recording.recording_format import find_recording, names_recording
from perfd.report.comparison import (
    MeasuredRun,
    RunComparison,
    compare,
    jobs_of,
    measures_of_benchmarks,
    measures_of_summary,
    measures_of_trace,
    one_job,
    results_in,
    to_json,
)
from perfd.report.comparison.comparison_report import (
    change_text,
    kernel_words,
    report_of_comparison,
    value_text,
)
from perfd.report.display_names import kernel_name
from perfd.report.render.report_writer import write_report
from perfd.trace.diagnosis import trace_json

_EPILOG = """\
With --json it prints one object: {"schema": "perfd.compare/1", "regressed", "sentence", "a", "b",
"max_regression_ratio", "changes": [{"name", "unit", "a", "b", "change_ratio", "better", "gate",
"verdict"}], "kernels": [{"name", "kind", "a_s", "b_s", "a_count", "b_count"}], "a_capture", "b_capture",
"differences": [{"area", "name", "a", "b"}]}. `verdict` is better, worse, same, changed (of a number whose
`better` is null: neither good nor bad in itself, or its source differs between the runs), new (it was zero in
A), unknown (only one of the two has it), or regressed: worse by more than allowed, of a number that counts
(`gate`). `differences` are settings that the two runs do not share: software, versions, layout, model,
arguments. Kernels are those of traces, or of the newest analyzed captures of both jobs (`a_capture`,
`b_capture`; empty if a job has none), all that changed, in seconds per step: `kind` is new, gone, more or
fewer (launches per step, by over 1%), longer or shorter.
Exit codes: 0 no worse than allowed; 1 regressed beyond the bound; 2 the two cannot be compared, or are of
different models (--unrelated compares these too).
"""
_KERNELS = 12
"""Shown; JSON has all."""
_SETTINGS = 24
"""Rows of differing settings that are printed; the report has all."""
_START_BYTES = 200
"""Enough of the start of a file to find the name of perfd's own schemas."""
_OURS = re.compile(rb'\s*\{\s*"schema"\s*:\s*"perfd\.')
_SNIFFED_BYTES = 1024 * 1024
"""Enough of a file's beginning to distinguish a trace from other JSON."""
_BENCHMARK_WORDS = (b"Serving Benchmark Result ==", b'"request_throughput"', b'"completed"')


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    kinds = (
        "a summary (perfd.summary/2), an analysis (perfd.trace/2), a trace, a directory of traces or"
        " of a `perfd run`, a recording, or a result of bench_serving"
    )
    parser.add_argument("a", metavar="A", help=f"baseline: {kinds}")
    parser.add_argument("b", metavar="B", help="new run: the same kind")
    parser.add_argument(
        "--max-regression",
        type=_ratio,
        default=0.03,
        metavar="RATIO",
        help="allowed regression, as 3%% or 0.03 (default: 3%%)",
    )
    parser.add_argument("--job", metavar="NAME", help="job name, if a summary has several")
    parser.add_argument(
        "--model-flops-per-step",
        type=positive,
        metavar="N",
        help="model FLOPs per step of traces, to compare MFU",
    )
    parser.add_argument(
        "--unrelated",
        action="store_true",
        help="compare runs of different models too, or without a common kernel",
    )
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="also write a report: Markdown (.md), HTML (.html) or JSON (.json)",
    )
    parser.add_argument("--json", action="store_true", help="print only one object of schema perfd.compare/1")


def run(args: argparse.Namespace) -> int:
    """Say what changed; fail when it got worse than allowed."""
    comparison = compare(*_runs(args), args.max_regression, any_runs=args.unrelated)
    if args.output:
        write_report(report_of_comparison(comparison, "perfd compare"), args.output)
    if args.json:
        print(msgspec.json.encode(to_json(comparison)).decode())
    else:
        console = Terminal()
        for part in (
            _table(comparison),
            *_kernels(comparison),
            *_differences(comparison),
            _verdict(comparison),
        ):
            console.print(part)
    return 1 if comparison.regressed else 0


def _runs(args: argparse.Namespace) -> tuple[MeasuredRun, MeasuredRun]:
    a, b = _benchmark(args.a), _benchmark(args.b)
    if a and b:
        return measures_of_benchmarks(a, b, (args.a, args.b))
    if a or b:
        one, other = (args.a, args.b) if a else (args.b, args.a)
        raise PerfdError(f"{one} is a result of bench_serving and {other} is none: compare like with like.")
    return _measured(args.a, args), _measured(args.b, args)


def _benchmark(name: str) -> Sequence[Mapping[str, Any]]:
    """Entries of perfd.bench_serving/1 when a file is of bench_serving, or of our verb for it; else none."""
    path = Path(name)
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        start = file.read(_SNIFFED_BYTES)
    if _OURS.match(start):
        found = _own_document(path) or {}
        return results_in(found, name) if found.get("schema") == BENCH_SCHEMA else ()
    if b'"traceEvents"' in start or not any(word in start for word in _BENCHMARK_WORDS):
        return ()
    return [document_of_benchmark(result, None) for result in results_of(path)]


def _measured(name: str, args: argparse.Namespace) -> MeasuredRun:
    path = Path(name)
    if names_recording(name):
        summaries = play(find_recording(name)).summaries
        return measures_of_summary(one_job(list(summaries), args.job, name), name)
    path = summary_or_path(path)
    found = _own_document(path)
    if found is not None and found["schema"] in trace_json.SCHEMAS:
        return measures_of_trace(found, name)
    if found is not None:
        job = one_job(jobs_of(found, name), args.job, name)
        return _with_kernels(measures_of_summary(job, name), path.parent, job.name)
    flops = args.model_flops_per_step
    given = [] if flops is None else ["--model-flops-per-step", repr(flops)]
    with tempfile.TemporaryFile() as output:
        run_analysis([*given, "--", str(path)], output, shown_as=name)
        output.seek(0)
        return measures_of_trace(msgspec.json.decode(output.read(), type=dict[str, Any]), name)


def _with_kernels(run: MeasuredRun, folder: Path, job: str) -> MeasuredRun:
    """With the kernels of a capture, if the page that `perfd run` saved beside the summary lists one."""
    try:
        return with_kernels(run, SavedRun(folder), job)
    except (PerfdError, OSError):
        return run


def _own_document(path: Path) -> dict[str, Any] | None:
    """What perfd itself printed; None for a trace of a profiler."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if not _OURS.match(file.read(_START_BYTES)):
            return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PerfdError(f"{path}: the file is cut or damaged: {error}.") from error


def _ratio(text: str) -> float:
    try:
        value = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio: write 3% or 0.03.")
    return value


def _table(comparison: RunComparison) -> TerminalTable:
    table = TerminalTable()
    for at, name in enumerate(("", "A", "B", "change", "")):
        table.add_column(name, justify="left" if at in {0, 4} else "right")
    for change in comparison.changes:
        if change.a is None and change.b is None:
            continue
        ratio = change_text(change)
        verdict = change.verdict.value
        style = {"regressed": "bold red", "worse": "yellow", "better": "green"}.get(verdict, "dim")
        table.add_row(
            change.name,
            value_text(change.a, change.unit),
            value_text(change.b, change.unit),
            ratio,
            Text(verdict, style=style),
        )
    return table


def _kernels(comparison: RunComparison) -> list[TerminalTable]:
    if not comparison.kernels:
        return []
    title = "Kernels that changed most, per step"
    if comparison.kernel_source:
        title += f" ({comparison.kernel_source})"
    table = TerminalTable(title)
    table.add_columns(("kernel", "", "A", "B", "change"), texts=2)
    for kernel in comparison.kernels[:_KERNELS]:
        table.add_row(
            Text(kernel_name(kernel.name, 64)),
            kernel_words(kernel),
            duration(kernel.a_s),
            duration(kernel.b_s),
            duration(kernel.b_s - kernel.a_s),
        )
    return [table]


def _verdict(comparison: RunComparison) -> Text:
    return Text(comparison.sentence, style="bold red" if comparison.regressed else "bold green")


def _differences(comparison: RunComparison) -> list[TerminalTable]:
    if not comparison.differences:
        return []
    table = TerminalTable("Settings that differ", keys=2)
    for name in ("", "", "A", "B"):
        table.add_column(name, overflow="fold")
    for one in comparison.differences[:_SETTINGS]:
        table.add_row(one.area, Text(one.name), Text(one.a or UNKNOWN), Text(one.b or UNKNOWN))
    if (left := len(comparison.differences) - _SETTINGS) > 0:
        table.add_row("", f"and {left} more; --json has all", "", "")
    return [table]
