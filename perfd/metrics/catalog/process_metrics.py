"""Metrics of prometheus_client about its process, the same for agent and aggregator."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, metric

_KERNEL, _PYTHON = "kernel", "the interpreter"
_GENERATION = ("generation",)

PROCESS_METRICS: Sequence[MetricInfo] = (
    metric("process_cpu_seconds_total", "User and system CPU time of the process.", source=_KERNEL),
    metric("process_resident_memory_bytes", "Resident memory of the process.", source=_KERNEL),
    metric("process_virtual_memory_bytes", "Virtual memory of the process.", source=_KERNEL),
    metric(
        "process_start_time_seconds", "When the process started, in seconds since the epoch.", source=_KERNEL
    ),
    metric("process_open_fds", "Open file descriptors.", source=_KERNEL),
    metric("process_max_fds", "Limit of open file descriptors.", source=_KERNEL),
    metric(
        "python_info",
        "Version of Python; always 1.",
        labels=("implementation", "major", "minor", "patchlevel", "version"),
        source=_PYTHON,
    ),
    metric("python_gc_collections_total", "Garbage collections.", labels=_GENERATION, source=_PYTHON),
    metric(
        "python_gc_objects_collected_total",
        "Objects that the garbage collector freed.",
        labels=_GENERATION,
        source=_PYTHON,
    ),
    metric(
        "python_gc_objects_uncollectable_total",
        "Objects that the garbage collector could not free.",
        labels=_GENERATION,
        source=_PYTHON,
    ),
)
"""Metrics of an agent's or aggregator's own process."""
