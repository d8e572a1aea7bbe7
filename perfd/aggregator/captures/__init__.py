"""Connects captures to agents, alerts and reports."""

from perfd.aggregator.captures.call_with_timeout import TimeoutCall
from perfd.aggregator.captures.capture_message_checks import is_folder_of
from perfd.aggregator.captures.capture_reports import DOCUMENT_NAME, PERFETTO_NAME, REPORT_NAME, ReportStorage
from perfd.aggregator.captures.capture_service import CaptureService
from perfd.aggregator.captures.capture_view import job_view, server_view

__all__ = [
    "DOCUMENT_NAME",
    "PERFETTO_NAME",
    "REPORT_NAME",
    "CaptureService",
    "ReportStorage",
    "TimeoutCall",
    "is_folder_of",
    "job_view",
    "server_view",
]
