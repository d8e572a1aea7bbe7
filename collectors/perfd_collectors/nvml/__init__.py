"""GPU samples through NVML and GPM, live and recorded."""

from __future__ import annotations

from perfd.collector import CollectorSpec, Settings
from perfd.model import GpuColumn
from perfd_collectors.nvml.collector import NvmlCollector, NvmlOptions
from perfd_collectors.nvml.columns import COLUMNS
from perfd_collectors.nvml.nvml_api import Nvml, load
from perfd_collectors.nvml.replay import RecordedNvml

__all__ = [
    "SPEC",
    "Nvml",
    "NvmlCollector",
    "NvmlOptions",
    "RecordedNvml",
]


def _create(options: NvmlOptions, settings: Settings) -> NvmlCollector:
    return NvmlCollector(load(), options, settings)


SPEC = CollectorSpec(
    name="nvml",
    options=NvmlOptions,
    create=_create,
    columns=COLUMNS,
    provides=tuple(GpuColumn),
    replay={"nvml": RecordedNvml},
)
