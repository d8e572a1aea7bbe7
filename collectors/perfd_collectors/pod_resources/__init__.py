"""Which container has which GPU, as the kubelet's pod-resources API says."""

from __future__ import annotations

from perfd_collectors.pod_resources.collector import SPEC, PodResourcesCollector, PodResourcesOptions

__all__ = ["SPEC", "PodResourcesCollector", "PodResourcesOptions"]
