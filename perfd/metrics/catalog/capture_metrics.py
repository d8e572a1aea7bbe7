"""Metrics about the captures of a job, and about uploading their files."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, of_job

CAPTURE_METRICS: Sequence[MetricInfo] = (
    of_job(
        "perfd_captures",
        "Captures by overall outcome; `open` until all ranks have one.",
        labels=("state",),
        source="perfd.capture",
        absent="Without captures.",
    ),
    of_job(
        "perfd_capture_ranks",
        "Ranks of captures by outcome.",
        labels=("state",),
        source="perfd.capture",
        absent="Without captures.",
    ),
    of_job(
        "perfd_capture_waiting_uploads",
        "Captured files that are not in object storage yet.",
        source="perfd.capture",
        absent="When no files wait.",
    ),
    of_job(
        "perfd_capture_upload_wait_seconds",
        "Time since the end of the oldest capture with such a file.",
        source="perfd.capture",
        absent="When no files wait.",
    ),
)
