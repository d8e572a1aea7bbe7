"""A summary as text: each job's bottleneck, evidence, advice, alerts and captures.

Markdown that reads well in a terminal too. Unknown values are omitted or called unknown;
nothing is computed here.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TextIO

from perfd.analysis.collectives import bandwidth_words, busiest
from perfd.analysis.communication import not_used
from perfd.analysis.diagnosis import JobPast, JobSummary
from perfd.analysis.findings import Finding
from perfd.analysis.hang import ErrorSummary
from perfd.formatting import rank_names
from perfd.session.text.summary_numbers import numbers_in_words

_TROUBLES_SHOWN = 8
"""Lines of troubles at the end of a run; the summary has all."""
_FAULTS_SHOWN = 12
"""Faults at the end of a run, those that cost most; the summary has all."""
_TROUBLE_CHARACTERS = 240
"""Longest message of a trouble: three lines of a terminal."""
NO_JOB = "No training job found: no line in the log looks like the progress of a known framework."


Alert = Mapping[str, Any]
"""One entry of schema perfd.alerts/1."""
Captured = Mapping[str, Any]
"""One entry of schema perfd.capture/1."""


def in_words(
    summaries: Sequence[JobSummary],
    alerts: Sequence[Alert] = (),
    notes: Sequence[str] = (),
    captures: Sequence[Captured] = (),
) -> str:
    """The text for all jobs, which are over, their alerts and captures, with notes about perfd's failures."""
    blocks = [
        "\n".join([*_job(summary), *_of_job(summary.name, alerts, captures)]) for summary in summaries
    ] or [NO_JOB]
    if others := [alert for alert in alerts if not alert["job"]]:
        blocks.append("\n".join(["Alerts without a job:", *map(_alert, others)]))
    jobs = {summary.name for summary in summaries}
    if strange := [capture for capture in captures if capture["job"] not in jobs]:
        blocks.append("\n".join(["Other captures:", *map(_capture, strange)]))
    if notes:
        blocks.append("\n".join(f"Note: {note}" for note in notes))
    return printable("\n\n".join(blocks)) + "\n"


_NAME_OF_NUMBER = re.compile(r"    \S+(?: \S+)*  +")
"""The rest of such a line is below its beginning, and not below the name."""
_NARROWEST = 20
"""Terminals report 0 columns while they have no size, and narrower text is unreadable."""


def printable(text: str) -> str:
    """The text with control characters replaced: names come from jobs, and terminals execute escapes."""
    return "".join(
        sign if sign == "\n" or sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, broken between words."""
    width = max(width, _NARROWEST)
    lines = []
    for line in text.splitlines():
        if len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())] + "  "
        if (name := _NAME_OF_NUMBER.match(line)) and 2 * name.end() < width:
            indent = " " * name.end()
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines) + "\n"


def fitted(text: str, out: TextIO) -> str:
    """The text as a stream should have it: in lines of its terminal, unchanged for a file or pipe."""
    return wrapped(text, shutil.get_terminal_size().columns) if out.isatty() else text


def _job(summary: JobSummary) -> list[str]:
    lines = [
        f"# {summary.name}",
        "",
        *_finding(summary.bottleneck, over=True),
        "",
        *numbers_in_words(summary),
    ]
    if summary.others:
        lines += ["", "Also found:"]
        lines += [f"- {finding.short_name}: {' '.join(finding.evidence)}" for finding in summary.others]
    return [*lines, *_past(summary.past), *_troubles(summary)]


def _past(past: JobPast) -> list[str]:
    """How often the job started again, and the faults that cost most, the oldest first."""
    lines = ["", past.restarts_sentence] if past.restarts_sentence else []
    shown = set(
        sorted(range(len(past.faults)), key=lambda at: -(past.faults[at].lost_s or 0.0))[:_FAULTS_SHOWN]
    )
    if shown:
        lines += ["", "Faults while it ran:"]
        lines += [f"- {fault.sentence}" for at, fault in enumerate(past.faults) if at in shown]
    hidden = len(past.faults) - len(shown)
    return [*lines, *([f"- {hidden} more, which cost less, are in the summary's `past`."] if hidden else [])]


def _of_job(job: str, alerts: Sequence[Alert], captures: Sequence[Captured]) -> list[str]:
    lines = ["", *_alerts([alert for alert in alerts if alert["job"] == job])]
    if mine := [capture for capture in captures if capture["job"] == job]:
        lines += ["", "Captures:", *map(_capture, mine)]
    return lines


def findings_in_words(
    summaries: Sequence[JobSummary], *, over: Collection[str] = (), firing: Sequence[Alert] = ()
) -> list[str]:
    """All findings of each job, the bottleneck first, one block per finding, then its alerts of `firing`.

    Of jobs whose names are in `over`, advice is for the next run.
    """
    if not summaries:
        return [f"{NO_JOB}\n"]
    blocks = []
    for summary in summaries:
        findings = [summary.bottleneck, *summary.others]
        blocks += [
            f"# {summary.name}",
            *("\n".join([*_finding(finding, over=summary.name in over), ""]) for finding in findings),
        ]
        blocks += [f"{sentence}\n" for sentence in not_used(summary.capture)]
        blocks += _bandwidths(summary)
        blocks += ["\n".join([*_troubles(summary)[1:], ""])] if summary.troubles else []
        if mine := [alert for alert in firing if alert["job"] == summary.name]:
            blocks.append("\n".join(["Alerts that fire now:", *_oldest_first(mine), ""]))
    return [printable(f"{block}\n" if block.startswith("#") else block) for block in blocks]


def _troubles(summary: JobSummary) -> list[str]:
    lines = [f"- {_trouble(trouble)}" for trouble in summary.troubles[:_TROUBLES_SHOWN]]
    hidden = len(summary.troubles) - len(lines)
    more = [f"- {hidden} more are in the summary's `troubles`."] if hidden else []
    return ["", "Errors and warnings, oldest first:", *lines, *more] if lines else []


def _trouble(trouble: ErrorSummary) -> str:
    who = rank_names(trouble.ranks) if trouble.ranks else ""
    when = f"after step {trouble.step}" if trouble.step is not None else ""
    often = f"{trouble.count} times" if trouble.count > 1 else ""
    facts = ", ".join(fact for fact in (who, when, often) if fact)
    # Some exceptions have their text in the lines below.
    message = textwrap.shorten(trouble.message, _TROUBLE_CHARACTERS, placeholder=" ...").removesuffix(":")
    return f"{message}{f' ({facts})' if facts else ''}"


def _bandwidths(summary: JobSummary) -> list[str]:
    lines = [f"- {bandwidth_words(kind)}" for kind in busiest(summary.nccl.kinds)]
    return ["\n".join(["Bandwidth of NCCL's transfers:", *lines, ""])] if lines else []


def _finding(finding: Finding, *, over: bool) -> list[str]:
    sure = f" ({finding.certainty_words})" if finding.certainty_words else ""
    lines = [f"{finding.headline}{sure}."]
    lines += [f"- {sentence}" for sentence in finding.evidence]
    for effect in finding.effects:
        lines += [f"- Explains {effect.summary}."]
        lines += [f"  - {sentence}" for sentence in effect.evidence]
    if finding.advice:
        # A job that is over can no longer be captured or looked into.
        lines += [f"{'For the next run' if over else 'What to do'}: {finding.advice}"]
    return lines


def _alerts(alerts: Sequence[Alert]) -> list[str]:
    if not alerts:
        return ["No alerts fired."]
    return ["Alerts that fired:", *_oldest_first(alerts)]


def _oldest_first(alerts: Sequence[Alert]) -> list[str]:
    return [_alert(one) for one in sorted(alerts, key=lambda alert: float(alert["fired_at_unix_s"] or 0))]


def _alert(alert: Alert) -> str:
    since = f" at step {alert['first_step']}" if alert["first_step"] is not None else ""
    summary = str(alert["annotations"].get("summary", "")).rstrip(".")
    captures = f" Captures: {', '.join(alert['captures'])}." if alert["captures"] else ""
    return f"- {alert['name']}{since}{f': {summary}' if summary else ''}.{captures}"


def _capture(capture: Captured) -> str:
    """How it ended, the verdict of its traces, and where they are."""
    why = f"alert {capture['alert']}" if capture["alert"] else "by hand"
    sentences = [f"- {capture['id']} ({capture['tool'] or 'no tool'}, {why}): {_ended(capture)}"]
    if report := capture["report"]:
        sentences += [report["words"], *([f"Report: {report['path']}."] if report["path"] else [])]
    elif folders := {str(PurePath(file["path"]).parent) for who in capture["ranks"] for file in who["files"]}:
        sentences.append(f"Files in {', '.join(sorted(folders))}.")
    return " ".join(sentences)


def _ended(capture: Captured) -> str:
    state = "not ended" if capture["state"] == "open" else str(capture["state"])
    return f"{state}: {capture['reason']}" if capture["reason"] else f"{state}."
