"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.analysis.findings import certainty_of
from perfd.formatting import escaped_controls, percent
from perfd.report.report_model import Report, ReportTable

_SIGN = re.compile(r"[\\|<>*`\[\]]|(?<![^\W_])_|_(?![^\W_])")
"""An underscore inside a word emphasizes nothing."""


def to_markdown(report: Report) -> str:
    """The whole report; pictures are left out, as the tables say the same."""
    lines = [f"# {_text(report.title)}", "", _text(report.subtitle), ""]
    lines += ["## Summary", "", f"**{_text(report.headline)}**", ""]
    lines += [f"- {_text(sentence)}" for sentence in report.summary]
    if report.metrics:
        lines += ["", "## Metrics", ""]
        rows = [(metric.name, metric.value, metric.source) for metric in report.metrics]
        lines += _grid(("metric", "value", "source"), rows, text_columns=3)
    lines += ["", "## Findings", ""]
    for found in report.findings or ():
        share = f", {percent(found.gain_ratio)}" if found.gain_ratio is not None else ""
        culprits = f" ({_text(found.culprits)})" if found.culprits else ""
        lines += [f"### {_text(found.title)}{culprits}{share}", ""]
        lines += [f"- {_text(sentence)}" for sentence in found.evidence]
        for said, why in found.effects:
            lines += [f"- {_text(said)}", *(f"  - {_text(sentence)}" for sentence in why)]
        # An unknown finding has none.
        certainty = certainty_of(found.confidence)
        lines += [f"- Certainty: {certainty}."] if certainty else []
        lines.append("")
    advising = report.recommendations()
    lines += ["## Recommendations", ""] if advising else []
    for number, found in enumerate(advising, start=1):
        gain = report.gain_words(found)
        lines.append(f"{number}. {_text(found.advice)}{f' ({gain})' if gain else ''}")
    for table in report.tables:
        lines += ["", f"## {_text(table.title)}", "", *_table(table), "", f"Source: {_text(table.source)}."]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {_text(note)}" for note in report.notes)]
    return escaped_controls("\n".join(lines) + "\n")


def _table(table: ReportTable) -> list[str]:
    return _grid(table.columns, table.rows, text_columns=table.text_columns)


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int) -> list[str]:
    marks = ["---" if at < text_columns else "---:" for at in range(len(columns))]
    return [
        f"| {' | '.join(map(_text, columns))} |",
        f"| {' | '.join(marks)} |",
        *(f"| {' | '.join(_text(cell) for cell in row)} |" for row in rows),
    ]


def _text(text: str) -> str:
    """Text that Markdown leaves alone: names of kernels are full of its signs."""
    return _SIGN.sub(r"\\\g<0>", text).replace("\n", " ")
