"""Builds reports from summaries, traces and rooflines."""

from perfd.report.sources.from_summary import report_of_summary
from perfd.report.sources.from_trace import report_of_trace
from perfd.report.sources.roofline_report import report_of_kernels, report_of_placement
from perfd.report.sources.trace_notes import notes_of

__all__ = [
    "notes_of",
    "report_of_kernels",
    "report_of_placement",
    "report_of_summary",
    "report_of_trace",
]
