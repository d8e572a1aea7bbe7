"""What NCCL does inside a job: by perfd's plugin, NCCL's Inspector and log, and PyTorch's flight recorder."""

from perfd_collectors.nccl.collector import SPEC

__all__ = ["SPEC"]
