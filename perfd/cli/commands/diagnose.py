"""`perfd diagnose`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from perfd import logs
from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA
from perfd.analysis.diagnosis import JobSummary, from_json
from perfd.analysis.findings import finding_json
from perfd.cli.aggregator_client import add_aggregator, get, get_jobs, reads_answers, url_of
from perfd.cli.named_runs import summary_or_path
from perfd.cli.recording_playback import play
from perfd.errors import PerfdError, RecordingError
from perfd.model import api_schemas
from perfd.recording.recording_format import find_recording
from perfd.report.comparison import read_summary
from perfd.session.text import Alert, checklist_in_words, findings_in_words, fitted

SCHEMA = "perfd.diagnosis/2"
_HELP = """\
Diagnoses what limits a job and what else costs it time: each finding with evidence, source, confidence,
culprits and advice; of a running job also the alerts that fire. Reads the aggregator's running jobs, a
recording, or the output of `perfd run`.
"""
_EPILOG = f"""\
With --json it prints one object: {{"schema": "{SCHEMA}", "jobs": [{{"name", "bottleneck",
"findings": [...], "capture"}}]}}; each finding has kind, name, sentence, confidence, culprits, evidence,
advice, gain_ratio and effects, as in perfd.summary/2, the bottleneck first; capture is what the newest
analyzed capture showed, or null. With --checklist too, each job has checklist: {{"checks": [{{"name",
"question", "state" (passed, failed, unknown), "value", "limit", "source", "in_path"}}], "conclusion"}};
in_path: the decision tree asks it at this MFU.
Exit codes: 0 diagnosed, whatever the result; 2 no such job, recording or aggregator."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = _HELP
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "recording",
        nargs="?",
        metavar="RECORDING",
        help="a recording (directory or bundled name), an output directory of `perfd run`, or a summary.json",
    )
    add_aggregator(parser)
    parser.add_argument("--job", metavar="NAME", help="only this job")
    parser.add_argument(
        "--checklist",
        action="store_true",
        help="print the decision tree for MFU instead: each question with answer, number, limit and source",
    )
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis."""
    if args.recording and (args.aggregator or args.job):
        raise PerfdError("Name a recording, or an aggregator and its job: not both.")
    return _run_recording(args) if args.recording else _run_live(args)


def _run_recording(args: argparse.Namespace) -> int:
    summaries = _of_recording(args.recording)
    _print(args, summaries, {summary.name for summary in summaries}, ())
    return 0


@reads_answers
def _run_live(args: argparse.Namespace) -> int:
    url = url_of(args)
    summaries, over = _live(url, args.job)
    firing: Sequence[Alert] = ()
    if not args.json and not args.checklist:
        firing = get(url, "/api/v1/alerts?state=firing", api_schemas.ALERTS)["alerts"]
    _print(args, summaries, over, firing)
    return 0


def _print(
    args: argparse.Namespace, summaries: Sequence[JobSummary], over: set[str], firing: Sequence[Alert]
) -> None:
    if args.json:
        print(json.dumps(document(summaries, checklist=args.checklist)))
        return
    blocks = (
        checklist_in_words(summaries)
        if args.checklist
        else findings_in_words(summaries, over=over, firing=firing)
    )
    print(fitted("\n".join(blocks), sys.stdout), end="")


def document(summaries: Sequence[JobSummary], *, checklist: bool = False) -> Mapping[str, Any]:
    """The object of schema perfd.diagnosis/2."""
    return {
        "schema": SCHEMA,
        "jobs": [
            _job(summary) | ({"checklist": msgspec.to_builtins(summary.checklist)} if checklist else {})
            for summary in summaries
        ],
    }


def _job(summary: JobSummary) -> dict[str, Any]:
    findings = [finding_json(finding) for finding in summary.findings]
    return {
        "name": summary.name,
        "bottleneck": findings[0],
        "findings": findings,
        "capture": msgspec.to_builtins(summary.capture),
    }


def _of_recording(name: str) -> Sequence[JobSummary]:
    logs.configure("error")
    summary = summary_or_path(Path(name))
    if summary.is_file():
        return read_summary(summary)
    try:
        recording = find_recording(name)
    except RecordingError as error:
        raise PerfdError(f"{error} Of a job that runs now: perfd diagnose --job {name}.") from error
    result = play(recording)
    for warning in result.warnings:
        # Without a skipped stream, the diagnosis may differ.
        print(f"perfd: {warning}", file=sys.stderr)
    return result.summaries


def _live(url: str, job: str | None) -> tuple[list[JobSummary], set[str]]:
    """The summaries of jobs that an aggregator knows, and the names of those that have ended."""
    known = get_jobs(url, short=True)
    running = {entry["name"] for entry in known if not entry["ended"]}
    names = [job] if job else [entry["name"] for entry in known]
    documents = [get(url, f"/api/v1/jobs/{quote(name, safe='')}", SUMMARY_SCHEMA) for name in names]
    summaries = [summary for document in documents for summary in from_json(document)]
    return summaries, {summary.name for summary in summaries} - running
