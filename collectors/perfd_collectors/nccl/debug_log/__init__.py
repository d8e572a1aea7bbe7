"""What NCCL prints with NCCL_DEBUG."""

from perfd_collectors.nccl.debug_log.debug_files import DebugFiles
from perfd_collectors.nccl.debug_log.debug_lines import DebugLog

__all__ = [
    "DebugFiles",
    "DebugLog",
]
