"""Follows training logs as a job writes them, and parses the formats of all supported frameworks."""

from __future__ import annotations

from perfd_collectors.training_log.collector import SPEC, TrainingLogOptions

__all__ = ["SPEC", "TrainingLogOptions"]
