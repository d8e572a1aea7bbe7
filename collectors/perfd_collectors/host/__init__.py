"""Host metrics: CPU, memory, pressure, network, InfiniBand and RoCE, disks."""

from __future__ import annotations

from perfd.collector import CollectorSpec
from perfd.model import NicColumn
from perfd_collectors.host.collector import HostCollector, HostOptions
from perfd_collectors.host.columns import COLUMNS

__all__ = ["SPEC", "HostCollector", "HostOptions"]

SPEC = CollectorSpec(
    name="host", options=HostOptions, create=HostCollector, columns=COLUMNS, provides=tuple(NicColumn)
)
