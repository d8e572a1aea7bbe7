"""Metrics about the captures of a job, and about uploading their files."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import JOB, MetricInfo, metric

CAPTURE_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_captures",
        "Captures by overall outcome; `open` until all ranks have one.",
        labels=(*JOB, "state"),
        source="perfd.capture",
        absent="Without captures.",
    ),
    metric(
        "perfd_capture_ranks",
        "Ranks of captures by outcome.",
        labels=(*JOB, "state"),
        source="perfd.capture",
        absent="Without captures.",
    ),
    metric(
        "perfd_capture_waiting_uploads",
        "Captured files that are not in object storage yet.",
        labels=JOB,
        source="perfd.capture",
        absent="When no files wait.",
    ),
    metric(
        "perfd_capture_upload_wait_seconds",
        "Time since the end of the oldest capture with such a file.",
        labels=JOB,
        source="perfd.capture",
        absent="When no files wait.",
    ),
)
