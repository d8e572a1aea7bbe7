"""The checklist of a summary as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.analysis.diagnosis import Check, CheckState, JobSummary
from perfd.analysis.findings import Kind
from perfd.session.text.summary_text import NO_JOB, printable

_MARKS = {CheckState.PASSED: "passed ", CheckState.FAILED: "failed ", CheckState.UNKNOWN: "unknown"}


def checklist_in_words(summaries: Sequence[JobSummary]) -> list[str]:
    """The conclusion of each job, then one line per question, with an arrow if the decision tree asks it.

    After the conclusion comes what limits the job by all evidence, of which the tree asks a part.
    """
    if not summaries:
        return [f"{NO_JOB}\n"]
    return [printable("\n".join([*_job(summary), ""])) for summary in summaries]


def _job(summary: JobSummary) -> list[str]:
    checks = summary.checklist.checks
    if not checks:
        return [
            f"# {summary.name}",
            "",
            "This summary is from a version of perfd without a checklist.",
        ]
    first = summary.bottleneck
    by_all = [f"By all evidence: {first.headline} ({first.certainty_words})."]
    if first.kind is Kind.UNKNOWN:
        by_all = []
    lines = [f"# {summary.name}", "", summary.checklist.conclusion, *by_all, ""]
    return [*lines, *(_line(check) for check in checks), "", "> asked by the decision tree at this MFU"]


def _line(check: Check) -> str:
    arrow = ">" if check.in_path else " "
    value = f"{check.value}; {check.limit}" if check.value else check.limit
    return f"{arrow} {_MARKS[check.state]}  {check.question} {value} ({check.source})"
