"""Operations that perfd's NCCL plugin recorded: read from the ring buffers, checked, and reduced per window.

Only nodes whose processes have the plugin import it: it is the one part of the agent that needs numpy.
"""

from perfd_collectors.nccl.operations.operation_columns import (
    Operation,
    Operations,
    OperationTiming,
    check_times,
)
from perfd_collectors.nccl.operations.segment_reader import Reading, RingBuffers, SegmentReader
from perfd_collectors.nccl.operations.window_reduction import (
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)

__all__ = [
    "Operation",
    "OperationTiming",
    "OperationWindow",
    "Operations",
    "Reading",
    "RingBuffers",
    "SegmentReader",
    "busy_ns",
    "check_times",
    "keep_one_in",
    "reduce_operations",
]
