"""Writes a report in the form that its file's name asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perfd.errors import PerfdError
from perfd.report.html import to_html
from perfd.report.markdown import to_markdown
from perfd.report.model import Report

FORMS: Mapping[str, Callable[[Report], str]] = {
    ".html": to_html,
    ".htm": to_html,
    ".md": to_markdown,
    ".markdown": to_markdown,
}


def write_report(report: Report, path: Path) -> None:
    """Write the report as Markdown or HTML.

    Raises `PerfdError` when the name asks for neither or the file cannot be written.
    """
    form = FORMS.get(path.suffix.lower())
    if form is None:
        raise PerfdError(f"{path}: a report is Markdown or HTML; name it .md or .html.")
    try:
        path.write_text(form(report), encoding="utf-8")
    except OSError as error:
        raise PerfdError(f"{path}: the report cannot be written: {error.strerror or error}.") from error
