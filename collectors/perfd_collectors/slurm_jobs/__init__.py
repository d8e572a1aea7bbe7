"""Reads all SLURM jobs of a node, for one agent that stays while jobs come and go."""

from __future__ import annotations

from perfd_collectors.slurm_jobs.collector import SPEC, SlurmJobsCollector, SlurmJobsOptions

__all__ = ["SPEC", "SlurmJobsCollector", "SlurmJobsOptions"]
