"""The GPUs and MIG slices of a node, with their names, memory and clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pynvml

from perfd.model import GpuInfo
from perfd_collectors.nvml.nvml_api import Fault, Handle, Nvml, NvmlError, fault_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """The GPU of a row, or with `gpu_instance` one of its MIG slices."""

    index: int
    parent: Handle
    handle: Handle
    """The same as `parent` for a whole GPU."""
    gpu_instance: int | None = None

    @property
    def mig(self) -> bool:
        """Whether it is a MIG slice."""
        return self.gpu_instance is not None

    @property
    def entity(self) -> str:
        """Entity of its rows: `0`, or `0/3` for the slice with GPU instance 3."""
        return f"{self.index}/{self.gpu_instance}" if self.mig else str(self.index)


def targets_of(nvml: Nvml, index: int) -> list[GpuTarget]:
    """A GPU followed by its MIG slices, one per GPU instance. Raises `pynvml.NVMLError` for a lost GPU."""
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    found: dict[int | None, GpuTarget] = {None: GpuTarget(index=index, parent=gpu, handle=gpu)}
    for device in _mig_devices(nvml, gpu):
        # Compute instances share the counters and the memory of their GPU instance.
        number = optional(nvml.nvmlDeviceGetGpuInstanceId, device)
        if number is not None and number not in found:
            found[number] = GpuTarget(index=index, parent=gpu, handle=device, gpu_instance=number)
    return list(found.values())


def describe(nvml: Nvml, target: GpuTarget) -> GpuInfo:
    """NVML's description of the target. Raises `pynvml.NVMLError` for a lost GPU."""
    memory = optional(nvml.nvmlDeviceGetMemoryInfo, target.handle)
    clock_mhz = optional(nvml.nvmlDeviceGetMaxClockInfo, target.parent, pynvml.NVML_CLOCK_SM)
    return GpuInfo(
        index=target.index,
        name=nvml.nvmlDeviceGetName(target.handle),
        uuid=optional(nvml.nvmlDeviceGetUUID, target.handle),
        memory_bytes=None if memory is None else memory.total,
        max_sm_clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
        mig=target.mig,
        gpu_instance=target.gpu_instance,
    )


def optional(call: Callable[..., T], *arguments: object) -> T | None:
    """The value, or None if the GPU does not provide it; a lost GPU or driver still raises."""
    try:
        return call(*arguments)
    except NvmlError as error:
        if fault_of(error) in {Fault.LOST, Fault.GONE}:
            raise
        return None


def _mig_devices(nvml: Nvml, gpu: Handle) -> Iterator[Handle]:
    mode = optional(nvml.nvmlDeviceGetMigMode, gpu)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    for position in range(optional(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
        device = optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, position)
        if device is not None:
            yield device
