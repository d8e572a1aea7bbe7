"""Who gives nodes to jobs."""

from __future__ import annotations

from enum import StrEnum


class Scheduler(StrEnum):
    """Who gives nodes to jobs."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
