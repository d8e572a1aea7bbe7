"""The versions of what a job runs on, by what its processes have mapped: framework, CUDA, NCCL, driver."""

from __future__ import annotations

from perfd.collector import CollectorSpec
from perfd_collectors.software.collector import SoftwareCollector, SoftwareOptions
from perfd_collectors.software.versions import driver_version, package_folders, versions

__all__ = ["SPEC", "driver_version", "package_folders", "versions"]

SPEC = CollectorSpec(name="software", options=SoftwareOptions, create=SoftwareCollector, interval_s=5.0)
