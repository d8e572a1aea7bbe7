"""Runs captures on a node: tools, storage, guards, sharing and retention."""

from perfd.capture.node.artifact_sharing import FolderSharing, Sharing
from perfd.capture.node.capture_executor import CaptureExecutor
from perfd.capture.node.capture_storage import CaptureStore, free_bytes, size_bytes
from perfd.capture.node.capture_tool import (
    TRACE_SUFFIXES,
    Begun,
    CaptureOutcome,
    CapturePlan,
    CaptureTarget,
    Readiness,
    Tool,
)
from perfd.capture.node.job_guards import GuardSettings, JobProgress
from perfd.capture.node.process_environment import (
    DAEMON_VARIABLE,
    NSYS_SESSION_VARIABLE,
    RUN_VARIABLE,
    ProcessScan,
    environment_of,
    lineage,
    namespace_pids,
    owner_of,
    pids,
    rank_of,
    runs,
    scan_nsys_processes,
)
from perfd.capture.node.process_targets import ProcessTool, placed_targets, started_pythons
from perfd.capture.node.read_lock import reading
from perfd.capture.node.retention import FolderWatch, OnRemoved, keep_s
from perfd.capture.node.shared_folder import SharedFolder
from perfd.capture.node.trace_directory import TraceDirectory, plan_trace_directory, trace_directory_of

__all__ = [
    "DAEMON_VARIABLE",
    "NSYS_SESSION_VARIABLE",
    "RUN_VARIABLE",
    "TRACE_SUFFIXES",
    "Begun",
    "CaptureExecutor",
    "CaptureOutcome",
    "CapturePlan",
    "CaptureStore",
    "CaptureTarget",
    "FolderSharing",
    "FolderWatch",
    "GuardSettings",
    "JobProgress",
    "OnRemoved",
    "ProcessScan",
    "ProcessTool",
    "Readiness",
    "SharedFolder",
    "Sharing",
    "Tool",
    "TraceDirectory",
    "environment_of",
    "free_bytes",
    "keep_s",
    "lineage",
    "namespace_pids",
    "owner_of",
    "pids",
    "placed_targets",
    "plan_trace_directory",
    "rank_of",
    "reading",
    "runs",
    "scan_nsys_processes",
    "size_bytes",
    "started_pythons",
    "trace_directory_of",
]
