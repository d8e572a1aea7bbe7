"""Dumps of PyTorch's NCCL flight recorder."""

from perfd_collectors.nccl.flight_recorder.dump_files import DumpDirectory, RecordedDump

__all__ = [
    "DumpDirectory",
    "RecordedDump",
]
