"""The shared memory that perfd's NCCL plugin writes: one segment per process."""

from perfd_collectors.nccl.segments.operations import (
    FUNCTIONS,
    KERNEL_EDGES_NS,
    Communicator,
    Operation,
    OperationTiming,
)
from perfd_collectors.nccl.segments.segment import ReadRequest, Segment
from perfd_collectors.nccl.segments.segment_files import find_segments, segment_names, sweep
from perfd_collectors.nccl.segments.segment_owner import OwnerLocks, distrust, writer_of
from perfd_collectors.nccl.segments.segment_reader import SegmentProgress, SegmentReader, same_file
from perfd_collectors.nccl.segments.timing_checks import mixed_up
from perfd_collectors.nccl.segments.window_reduction import (
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)

__all__ = [
    "FUNCTIONS",
    "KERNEL_EDGES_NS",
    "Communicator",
    "Operation",
    "OperationTiming",
    "OperationWindow",
    "OwnerLocks",
    "ReadRequest",
    "Segment",
    "SegmentProgress",
    "SegmentReader",
    "busy_ns",
    "distrust",
    "find_segments",
    "keep_one_in",
    "mixed_up",
    "reduce_operations",
    "same_file",
    "segment_names",
    "sweep",
    "writer_of",
]
