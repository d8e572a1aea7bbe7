"""What NCCL does inside a job, as perfd's profiler plugin records it."""

from perfd_collectors.nccl.collector import SPEC

__all__ = ["SPEC"]
