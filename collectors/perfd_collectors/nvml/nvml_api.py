"""The boundary to NVML: what is called of `pynvml`, and what its error codes mean to perfd."""

# ruff: noqa: N802  (the names of the functions are pynvml's)

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import pynvml

from perfd.errors import NothingHere, Unavailable

Handle: TypeAlias = Any
"""An opaque device handle of pynvml."""
Structure: TypeAlias = Any
"""A ctypes structure, or a pointer to one, whose type pynvml builds at run time."""

NvmlError: type[Exception] = pynvml.NVMLError


class Nvml(Protocol):
    """The functions of `pynvml` that the collectors call.

    Implemented by the module `pynvml`, and by a fake in tests. All raise `pynvml.NVMLError`.
    `nvmlDeviceGetPcieThroughput` is missing on purpose: it blocks for 20 ms, and GPM has the same values.
    """

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...
    def nvmlDeviceGetIndex(self, handle: Handle) -> int: ...
    def nvmlDeviceGetName(self, handle: Handle) -> str: ...
    def nvmlDeviceGetUUID(self, handle: Handle) -> str: ...
    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Structure: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int) -> int: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Structure: ...
    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int: ...
    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int) -> int: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Structure: ...
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle) -> int: ...
    def nvmlDeviceGetFieldValues(self, handle: Handle, fields: Sequence[int]) -> Structure: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> Sequence[Structure]: ...
    def nvmlDeviceGetMigMode(self, handle: Handle) -> Sequence[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle: ...
    def nvmlDeviceGetGpuInstanceId(self, handle: Handle) -> int: ...
    def nvmlGpmQueryDeviceSupport(self, handle: Handle) -> Structure: ...
    def nvmlGpmSampleAlloc(self) -> Structure: ...
    def nvmlGpmSampleFree(self, sample: Structure) -> None: ...
    def nvmlGpmSampleGet(self, handle: Handle, sample: Structure) -> Structure: ...
    def nvmlGpmMigSampleGet(self, handle: Handle, gpu_instance: int, sample: Structure) -> Structure: ...
    def nvmlGpmMetricsGet(self, request: Structure) -> Structure: ...
    def nvmlEventSetCreate(self) -> Structure: ...
    def nvmlEventSetFree(self, event_set: Structure) -> None: ...
    def nvmlEventSetWait_v2(self, event_set: Structure, timeout_ms: int) -> Structure: ...
    def nvmlDeviceGetSupportedEventTypes(self, handle: Handle) -> int: ...
    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, event_set: Structure) -> None: ...


_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""First byte of the PCI class of display controllers, which includes compute-only GPUs."""
_NO_GPU = (
    "This node has no NVIDIA GPU: no driver, and no such device on the PCI bus. This is not a failure;"
    " to stop checking, set collectors.nvml.enabled, nvml_events.enabled and ranks.enabled to false."
)


class Fault(Enum):
    """What an NVML error means for the requested value."""

    NEVER = "unsupported by this GPU, driver or user: do not query again"
    NOW = "failed this time: query again"
    LOST = "the GPU no longer responds"
    GONE = "the driver is gone, and with it all GPUs"


_NEVER = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
}
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}


def error_code(error: BaseException) -> int:
    """The NVML return code behind an exception of pynvml."""
    return int(getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN))


def fault_of_code(code: int) -> Fault:
    """The meaning of an NVML return code other than success."""
    if code in _NEVER:
        return Fault.NEVER
    if code in _LOST:
        return Fault.LOST
    if code in _GONE:
        return Fault.GONE
    return Fault.NOW


def fault_of(error: Exception) -> Fault:
    """The meaning of a pynvml exception."""
    return fault_of_code(error_code(error))


def start(nvml: Nvml, sys: Path) -> None:
    """Initialize NVML; raises `Unavailable` with a sentence on what the node lacks.

    Raises `NothingHere` when there is neither a driver nor a GPU under `sys`.
    Each success needs one `nvmlShutdown`: NVML counts them.
    """
    try:
        nvml.nvmlInit()
    except NvmlError as error:
        lacks_driver = error_code(error) in {
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        }
        if lacks_driver and not _has_gpu(sys):
            raise NothingHere(_NO_GPU) from error
        raise Unavailable(_why(error)) from error


def _has_gpu(sys: Path) -> bool:
    """Whether the PCI bus has an NVIDIA GPU, with or without a driver."""
    devices = sys / "bus" / "pci" / "devices"
    return any(
        _word(vendor) == _NVIDIA and _word(vendor.with_name("class")).startswith(_DISPLAY)
        for vendor in devices.glob("*/vendor")
    )


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def load() -> Nvml:
    """The real NVML through `pynvml`; opens nothing."""
    return cast("Nvml", pynvml)


def unavailable(error: Exception) -> Unavailable:
    """The exception to raise when the driver is unloaded under a running collector."""
    return Unavailable(_why(error))


def _why(error: Exception) -> str:
    code = error_code(error)
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return (
            "The NVIDIA driver library libnvidia-ml.so.1 was not found: install the driver on the node,"
            " or start the container with the NVIDIA runtime and the driver capability `utility`."
        )
    if code in {pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNINITIALIZED}:
        return "The NVIDIA kernel driver is not loaded: run `nvidia-smi` on the node for the reason."
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            "The NVIDIA library and the kernel driver have different versions: after a driver update, reload "
            "the driver or reboot the node."
        )
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return "No permission to open /dev/nvidiactl: give this user access to the NVIDIA devices."
    return f"NVML failed to start (return code {code}): run `nvidia-smi` on the node for the reason."
