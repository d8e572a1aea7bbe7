"""`perfd report`."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perfd.aggregator.web_api import SavedRun
from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA
from perfd.cli.aggregator_client import add_aggregator, get, reads_answers, url_of
from perfd.cli.commands.serving import add_theory_arguments
from perfd.cli.named_runs import summary_or_path
from perfd.cli.recording_playback import play
from perfd.cli.serving.serving_report import serving_report
from perfd.cli.traces import trace_reading
from perfd.errors import PerfdError
from perfd.gpu_peaks import load_peaks
from perfd.model import api_schemas
from perfd.recording.recording_format import find_recording, names_recording
from perfd.report.comparison import jobs_of, one_job, read_summary
from perfd.report.render.markdown import to_markdown
from perfd.report.render.report_writer import to_json, write_report
from perfd.report.report_model import Report
from perfd.report.sources.from_summary import CHART_POINTS, report_of_summary
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.diagnosis import TraceSettings, analyse, diagnose
from perfd.trace.readers.trace_files import with_folders_opened

_AGO = re.compile(r"(\d{1,6})([smhd])")
_START_BYTES = 4096
"""Enough of the start of a file to find the key of a schema, which is its first."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Exit codes: 0 success; 2 nothing to report, or the report cannot be written."
    parser.add_argument(
        "source",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="a summary (perfd.summary/2, as of perfd replay --json), a trace, a directory of a capture's"
        " traces or of a `perfd run`, a recording, saved metrics of a server, or results of bench_serving;"
        " default: the aggregator",
    )
    parser.add_argument("--job", metavar="NAME", help="job name, if there are several")
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="Markdown (.md), HTML (.html) or JSON (.json); default: print Markdown",
    )
    parser.add_argument(
        "--since",
        metavar="WHEN",
        type=_moment,
        help="of a job of the aggregator: start time; 90s, 30m, 2h or 1d ago, or 2026-11-21T07:40:00Z",
    )
    parser.add_argument("--json", action="store_true", help="print only one object of schema perfd.report/1")
    add_aggregator(parser)
    add_theory_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Report on one job or capture."""
    if args.since is not None and (args.source or not args.job):
        raise PerfdError("--since is of a job of the aggregator: name it with --job, without a file.")
    source = None if args.source is None else summary_or_path(args.source)
    if source is None:
        report = _of_aggregator(args)
    elif (of_server := serving_report(source, args)) is not None:
        report = of_server
    elif names_recording(str(source)):
        summaries = play(find_recording(str(source))).summaries
        report = report_of_summary(one_job(list(summaries), args.job, str(source)), source.name)
    elif _holds_summary(source):
        job = one_job(read_summary(source), args.job, str(source))
        report = report_of_summary(job, source.name, _saved_series(source.parent, job.name))
    else:
        files, settings = with_folders_opened([source]), TraceSettings(peaks=load_peaks())
        traces = trace_reading.read(args, files, "nsys", written=args.output)
        analysis = analyse(traces, settings)
        report = report_of_trace(analysis, diagnose(analysis))
    if args.output:
        write_report(report, args.output)
    if args.json:
        print(to_json(report), end="")
    elif not args.output:
        print(to_markdown(report), end="")
    return 0


@reads_answers
def _of_aggregator(args: argparse.Namespace) -> Report:
    if not args.job:
        raise PerfdError("Name the file of a summary or trace, or a job of the aggregator with --job.")
    name = url_of(args)
    path = f"/api/v1/jobs/{quote(args.job, safe='')}"
    if args.since is not None:
        path += f"?since={args.since.timestamp()!r}"
    job = one_job(jobs_of(get(name, path, SUMMARY_SCHEMA), name), args.job, name)
    if args.since is not None:
        name += f" since {args.since:%Y-%m-%d %H:%M:%S} UTC"
    series = None if args.since else _series(name, args.job)
    return report_of_summary(job, name, series)


def _series(aggregator: str, job: str) -> dict[str, Any] | None:
    """The job's steps; None if the aggregator has none."""
    try:
        return get(
            aggregator, f"/api/v1/jobs/{quote(job, safe='')}/series?points={CHART_POINTS}", api_schemas.SERIES
        )
    except PerfdError:
        return None


def _saved_series(folder: Path, job: str) -> dict[str, Any] | None:
    """The job's steps, if `perfd run` left a page that can be read beside its summary."""
    try:
        return SavedRun(folder).series(job, CHART_POINTS)
    except (PerfdError, OSError):
        return None


def _holds_summary(path: Path) -> bool:
    """Whether it is a document with a schema, as perfd writes them; traces have none."""
    try:
        with path.open("rb") as file:
            return b'"schema"' in file.read(_START_BYTES)
    except IsADirectoryError:
        return False
    except FileNotFoundError as error:
        raise PerfdError(
            f"{path} does not exist: name a summary, a trace, a recording, or the folder of a run."
        ) from error
    except OSError as error:
        raise PerfdError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _moment(text: str) -> datetime:
    """A moment that is so long ago, or that is named; without a zone it is UTC."""
    try:
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS_S[ago[2]])
        named = datetime.fromisoformat(text)
        return (named if named.tzinfo else named.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"{text!r} is not a time: write 30m, or 2026-11-21T07:40:00Z."
        raise argparse.ArgumentTypeError(message) from None
