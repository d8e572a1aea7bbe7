"""`perfd report`."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import quote

from perfd.cli.client import add_aggregator, get, url_of
from perfd.errors import PerfdError
from perfd.report.from_summary import report_of_summary
from perfd.report.markdown import to_markdown
from perfd.report.summaries import jobs_of, one_job, read_summary
from perfd.report.write import write_report


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Exit codes: 0 the report was written; 2 there is nothing to report, or it cannot be written."
    )
    parser.add_argument(
        "summary",
        metavar="SUMMARY",
        type=Path,
        nargs="?",
        help="a file of schema perfd.summary/1 (perfd replay --json); without one, an aggregator is asked",
    )
    parser.add_argument("--job", metavar="NAME", help="which job, when there are several")
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="Markdown (.md) or HTML (.html); default: print Markdown",
    )
    add_aggregator(parser)


def run(args: argparse.Namespace) -> int:
    """Report on one job from its summary."""
    if args.summary:
        name = args.summary.name
        job = one_job(read_summary(args.summary), args.job, str(args.summary))
    elif args.job:
        name = url_of(args)
        job = one_job(jobs_of(get(name, f"/api/v1/jobs/{quote(args.job, safe='')}"), name), args.job, name)
    else:
        raise PerfdError("Name a summary's file, or a job of the aggregator with --job.")
    report = report_of_summary(job, name)
    if args.output:
        write_report(report, args.output)
    else:
        print(to_markdown(report), end="")
    return 0
