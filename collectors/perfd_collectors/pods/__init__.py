"""Reads the logs of a Kubernetes node's pods, so that a job needs no change."""

from __future__ import annotations

from perfd_collectors.pods.collector import SPEC, PodsCollector, PodsOptions

__all__ = ["SPEC", "PodsCollector", "PodsOptions"]
