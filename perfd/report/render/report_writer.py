"""Writes a report in the form that its file's name asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from perfd.errors import PerfdError
from perfd.report.render.html import to_html
from perfd.report.render.markdown import to_markdown
from perfd.report.render.roofline_svg import to_svg
from perfd.report.report_model import Report, Roofline
from perfd.sandbox.named_files import refuse_pipe

SCHEMA = "perfd.report/1"


def to_json(report: Report) -> str:
    """The report as one object of schema perfd.report/1."""
    return msgspec.json.encode({"schema": SCHEMA, **asdict(report)}).decode() + "\n"


FORMS: Mapping[str, Callable[[Report], str]] = {
    ".html": to_html,
    ".htm": to_html,
    ".md": to_markdown,
    ".markdown": to_markdown,
    ".json": to_json,
}


def write_report(report: Report, path: Path) -> None:
    """Write the report as Markdown, HTML or JSON, or the picture of a roofline as SVG.

    Raises `PerfdError` when the name asks for none of them or the file cannot be written,
    and for a named pipe.
    """
    rooflines = [figure for figure in report.figures if isinstance(figure, Roofline)]
    form = FORMS.get(path.suffix.lower())
    if path.suffix.lower() == ".svg" and rooflines:
        text = to_svg(rooflines[0])
    elif form is not None:
        text = form(report)
    else:
        others = ", or .svg" if rooflines else ""
        raise PerfdError(f"{path}: a report is Markdown, HTML or JSON; name it .md, .html or .json{others}.")
    refuse_pipe(path)
    try:
        # File names may not be valid UTF-8.
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise PerfdError(f"{path}: the report cannot be written: {error.strerror or error}.") from error
