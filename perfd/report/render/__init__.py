"""Writes a report as text, Markdown, HTML or SVG."""

from perfd.report.render.html import to_html
from perfd.report.render.markdown import to_markdown
from perfd.report.render.report_writer import to_json, write_report
from perfd.report.render.terminal_text import render

__all__ = [
    "render",
    "to_html",
    "to_json",
    "to_markdown",
    "write_report",
]
