"""XIDs and memory errors, as NVML reports them."""

from __future__ import annotations

from perfd.collector import CollectorSpec, OnUnavailable, Settings
from perfd_collectors.nvml.nvml_api import load
from perfd_collectors.nvml_events.collector import NvmlEventsCollector, NvmlEventsOptions
from perfd_collectors.nvml_events.xids import Cause, Xid, describe, load_xids

__all__ = ["SPEC", "Cause", "NvmlEventsCollector", "NvmlEventsOptions", "Xid", "describe", "load_xids"]


def _create(options: NvmlEventsOptions, settings: Settings) -> NvmlEventsCollector:
    return NvmlEventsCollector(load(), options, settings)


SPEC = CollectorSpec(
    name="nvml_events",
    options=NvmlEventsOptions,
    create=_create,
    on_unavailable=OnUnavailable.RETRY,
)
