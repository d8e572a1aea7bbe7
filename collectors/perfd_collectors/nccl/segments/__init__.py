"""The shared memory that perfd's NCCL plugin writes: one segment per process."""

from perfd_collectors.nccl.segments.plugin_records import (
    ALGORITHMS,
    DATATYPE_BYTES,
    FUNCTIONS,
    NO_RANKS,
    PROTOCOLS,
    UNTIMED_KERNEL_NS,
    Communicator,
    ProcessInfo,
    ProcessRanks,
)
from perfd_collectors.nccl.segments.private_segments import PrivateSegments
from perfd_collectors.nccl.segments.segment import RecordingMode, Segment
from perfd_collectors.nccl.segments.segment_discovery import find_segments, remove_left_over, segment_names
from perfd_collectors.nccl.segments.segment_owner import FileLocks, ownership_problem, writer_of

__all__ = [
    "ALGORITHMS",
    "DATATYPE_BYTES",
    "FUNCTIONS",
    "NO_RANKS",
    "PROTOCOLS",
    "UNTIMED_KERNEL_NS",
    "Communicator",
    "FileLocks",
    "PrivateSegments",
    "ProcessInfo",
    "ProcessRanks",
    "RecordingMode",
    "Segment",
    "find_segments",
    "ownership_problem",
    "remove_left_over",
    "segment_names",
    "writer_of",
]
