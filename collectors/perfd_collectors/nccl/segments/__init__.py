"""The shared memory that perfd's NCCL plugin writes: one segment per process."""

from perfd_collectors.nccl.segments.plugin_records import (
    FUNCTIONS,
    NO_RANKS,
    UNTIMED_KERNEL_NS,
    Communicator,
    Operation,
    OperationTiming,
    ProcessRanks,
)
from perfd_collectors.nccl.segments.private_segments import PrivateSegments
from perfd_collectors.nccl.segments.segment import RecordingMode, Segment
from perfd_collectors.nccl.segments.segment_discovery import find_segments, remove_left_over, segment_names
from perfd_collectors.nccl.segments.segment_owner import FileLocks, ownership_problem, writer_of
from perfd_collectors.nccl.segments.segment_reader import SegmentProgress, SegmentReader, same_file
from perfd_collectors.nccl.segments.timing_checks import TimingCheck, check_times
from perfd_collectors.nccl.segments.window_reduction import (
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)

__all__ = [
    "FUNCTIONS",
    "NO_RANKS",
    "UNTIMED_KERNEL_NS",
    "Communicator",
    "FileLocks",
    "Operation",
    "OperationTiming",
    "OperationWindow",
    "PrivateSegments",
    "ProcessRanks",
    "RecordingMode",
    "Segment",
    "SegmentProgress",
    "SegmentReader",
    "TimingCheck",
    "busy_ns",
    "check_times",
    "find_segments",
    "keep_one_in",
    "ownership_problem",
    "reduce_operations",
    "remove_left_over",
    "same_file",
    "segment_names",
    "writer_of",
]
