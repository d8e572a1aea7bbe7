"""A fake of the functions of `pynvml` that perfd's collectors call, driven by data."""

# ruff: noqa: N802  (the names of the functions are pynvml's)

from __future__ import annotations

import ctypes
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import pynvml

Handle: TypeAlias = Any
Structure: TypeAlias = Any

GPM_BUSY: Mapping[int, float] = {
    1: 95.0, 2: 80.0, 3: 25.0, 4: 12.0, 5: 40.0, 10: 35.0, 11: 0.0, 12: 8.0, 13: 1.0,
    20: 100.0, 21: 50.0, 60: 2048.0, 61: 1024.0,
}  # fmt: skip
"""GPM metrics of a busy GPU by NVML's id, in NVML's units: percent and MiB/s."""

FIELDS_HEALTHY: Mapping[int, int] = {
    3: 0, 4: 0, 74: 5_000_000_000, 76: 0, 82: 60, 83: 7_000_000, 94: 2,
    142: 1, 143: 0, 144: 0, 145: 0, 269: 1_000_000_000, 270: 0, 271: 0,
}  # fmt: skip
"""Field values of a healthy GPU by NVML's id, in NVML's units: ns, mJ, degrees."""


@dataclass(kw_only=True)
class FakeProcess:
    """A process with a compute context. `memory_bytes` is None if the driver does not report it."""

    pid: int
    memory_bytes: int | None = 10 * 2**30


@dataclass(kw_only=True)
class FakeSlice:
    """A MIG device: one compute instance of a GPU instance."""

    gpu_instance: int
    compute_instance: int = 0
    name: str = "NVIDIA H100 MIG 1g.10gb"
    memory_total_bytes: int = 10 * 2**30
    memory_used_bytes: int = 2**30
    gpm: Mapping[int, float] = field(default_factory=lambda: dict(GPM_BUSY))


@dataclass(kw_only=True)
class FakeGpu:
    """One GPU; tests change its attributes while a collector runs."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = ""
    memory_total_bytes: int = 80 * 2**30
    memory_used_bytes: int = 60 * 2**30
    gpm: Mapping[int, float] | None = field(default_factory=lambda: dict(GPM_BUSY))
    """Metrics by id; None for a GPU older than Hopper. An id that is missing answers "not supported"."""
    fields: Mapping[int, float] = field(default_factory=lambda: dict(FIELDS_HEALTHY))
    """Field values by id; an id that is missing answers "not supported"."""
    busy_percent: int = 97
    memory_busy_percent: int = 40
    power_mw: int = 650_000
    power_limit_mw: int = 700_000
    temperature_celsius: int = 55
    sm_clock_mhz: int = 1980
    memory_clock_mhz: int = 2619
    max_sm_clock_mhz: int = 1980
    event_reasons: int = 4
    processes: Sequence[FakeProcess] = ()
    slices: Sequence[FakeSlice] | None = None
    """The MIG devices; None where MIG is off."""
    supported_events: int = 0xFFFF
    lost: bool = False
    errors: dict[str, int] = field(default_factory=dict)
    """NVML return codes by the function that answers with them."""


class FakeNvml:
    """Behaves as the module `pynvml` over some GPUs.

    `init_code` makes `nvmlInit` fail, `missing` names functions that the
    driver does not have. `calls` counts calls by name.
    """

    def __init__(
        self, gpus: Sequence[FakeGpu] = (), *, init_code: int = 0, missing: Sequence[str] = ()
    ) -> None:
        self.gpus = list(gpus)
        self.init_code = init_code
        self.missing = set(missing)
        self.calls: Counter[str] = Counter()
        self.initialised = 0
        self.samples_alive = 0
        self._events: deque[tuple[int, int, int]] = deque()
        self._registered: dict[int, int] = {}
        self._samples: dict[int, tuple[Handle, int | None, int] | None] = {}
        self._taken = 0

    def emit(self, gpu: int, data: int, kind: int = pynvml.nvmlEventTypeXidCriticalError) -> None:
        """Let an event happen: an XID, unless `kind` says otherwise."""
        if self._registered.get(gpu, 0) & kind:
            self._events.append((gpu, kind, data))

    def nvmlInit(self) -> None:
        self._count("nvmlInit")
        _fail(self.init_code)
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self._count("nvmlShutdown")
        if not self.initialised:
            _fail(pynvml.NVML_ERROR_UNINITIALIZED)
        self.initialised -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._count("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        self._count("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        handle = _device(index)
        self._gpu("nvmlDeviceGetHandleByIndex", handle)
        return handle

    def nvmlDeviceGetIndex(self, handle: Handle) -> int:
        self._count("nvmlDeviceGetIndex")
        return _address(handle)[0]

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        gpu = self._gpu("nvmlDeviceGetName", handle)
        mig = self._slice(handle)
        return mig.name if mig else gpu.name

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        gpu = self._gpu("nvmlDeviceGetUUID", handle)
        index, mig = _address(handle)
        uuid = gpu.uuid or f"GPU-00000000-0000-0000-0000-{index:012d}"
        return uuid if mig is None else f"MIG-{uuid[4:]}-{mig}"

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> SimpleNamespace:
        self._gpu("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=f"00000000:{0x18 + _address(handle)[0]:02X}:00.0")

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int) -> int:
        gpu = self._gpu("nvmlDeviceGetMaxClockInfo", handle)
        return gpu.max_sm_clock_mhz if clock == pynvml.NVML_CLOCK_SM else gpu.memory_clock_mhz

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Structure:
        gpu = self._gpu("nvmlDeviceGetUtilizationRates", handle)
        if gpu.slices is not None:
            _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return pynvml.c_nvmlUtilization_t(gpu=gpu.busy_percent, memory=gpu.memory_busy_percent)

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        return self._gpu("nvmlDeviceGetPowerUsage", handle).power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle) -> int:
        return self._gpu("nvmlDeviceGetEnforcedPowerLimit", handle).power_limit_mw

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            _fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._gpu("nvmlDeviceGetTemperature", handle).temperature_celsius

    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int) -> int:
        gpu = self._gpu("nvmlDeviceGetClockInfo", handle)
        return gpu.sm_clock_mhz if clock == pynvml.NVML_CLOCK_SM else gpu.memory_clock_mhz

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Structure:
        gpu = self._gpu("nvmlDeviceGetMemoryInfo", handle)
        owner = self._slice(handle) or gpu
        total, used = owner.memory_total_bytes, owner.memory_used_bytes
        return pynvml.c_nvmlMemory_t(total=total, used=used, free=total - used)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int:
        return self._gpu("nvmlDeviceGetCurrentClocksEventReasons", handle).event_reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle) -> int:
        return self._gpu("nvmlDeviceGetCurrentClocksThrottleReasons", handle).event_reasons

    def nvmlDeviceGetFieldValues(self, handle: Handle, fields: Sequence[int]) -> Structure:
        gpu = self._gpu("nvmlDeviceGetFieldValues", handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, number in zip(values, fields, strict=True):
            self.calls[f"field {number}"] += 1
            value.fieldId = number
            if number not in gpu.fields:
                value.nvmlReturn = gpu.errors.get(f"field {number}", pynvml.NVML_ERROR_NOT_SUPPORTED)
                continue
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = int(gpu.fields[number])
        return values

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> Sequence[Structure]:
        gpu = self._gpu("nvmlDeviceGetComputeRunningProcesses", handle)
        return [
            pynvml.nvmlFriendlyObject({"pid": process.pid, "usedGpuMemory": process.memory_bytes})
            for process in gpu.processes
        ]

    def nvmlDeviceGetMigMode(self, handle: Handle) -> Sequence[int]:
        mode = int(self._gpu("nvmlDeviceGetMigMode", handle).slices is not None)
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        self._gpu("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle:
        gpu = self._gpu("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        if index >= len(gpu.slices or ()):
            _fail(pynvml.NVML_ERROR_NOT_FOUND)
        return _device(_address(handle)[0], index)

    def nvmlDeviceGetGpuInstanceId(self, handle: Handle) -> int:
        self._gpu("nvmlDeviceGetGpuInstanceId", handle)
        mig = self._slice(handle)
        if mig is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return mig.gpu_instance

    def nvmlGpmQueryDeviceSupport(self, handle: Handle) -> Structure:
        gpu = self._gpu("nvmlGpmQueryDeviceSupport", handle)
        return pynvml.c_nvmlGpmSupport_t(version=1, isSupportedDevice=int(gpu.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> Structure:
        self._count("nvmlGpmSampleAlloc")
        self.samples_alive += 1
        number = self.calls["nvmlGpmSampleAlloc"]
        self._samples[number] = None
        return ctypes.cast(ctypes.c_void_p(number), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Structure) -> None:
        self._count("nvmlGpmSampleFree")
        del self._samples[_value_of(sample)]
        self.samples_alive -= 1

    def nvmlGpmSampleGet(self, handle: Handle, sample: Structure) -> Structure:
        if self._gpu("nvmlGpmSampleGet", handle).gpm is None:
            _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._take(sample, handle, None)

    def nvmlGpmMigSampleGet(self, handle: Handle, gpu_instance: int, sample: Structure) -> Structure:
        gpu = self._gpu("nvmlGpmMigSampleGet", handle)
        if gpu_instance not in {mig.gpu_instance for mig in gpu.slices or ()}:
            _fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._take(sample, handle, gpu_instance)

    def nvmlGpmMetricsGet(self, request: Structure) -> Structure:
        self._count("nvmlGpmMetricsGet")
        first = self._samples[_value_of(request.sample1)]
        second = self._samples[_value_of(request.sample2)]
        if first is None or second is None or first[2] >= second[2] or _owner(first) != _owner(second):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        metrics = self._metrics(first[0], first[1])
        for position in range(request.numMetrics):
            slot = request.metrics[position]
            known = slot.metricId in metrics
            slot.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            slot.value = metrics.get(slot.metricId, -1.0)
        return request

    def nvmlEventSetCreate(self) -> Structure:
        self._count("nvmlEventSetCreate")
        return pynvml.c_nvmlEventSet_t()

    def nvmlEventSetFree(self, event_set: Structure) -> None:
        self._count("nvmlEventSetFree")
        self._registered.clear()

    def nvmlDeviceGetSupportedEventTypes(self, handle: Handle) -> int:
        return self._gpu("nvmlDeviceGetSupportedEventTypes", handle).supported_events

    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, event_set: Structure) -> None:
        gpu = self._gpu("nvmlDeviceRegisterEvents", handle)
        if types & ~gpu.supported_events:
            _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._registered[_address(handle)[0]] = types

    def nvmlEventSetWait_v2(self, event_set: Structure, timeout_ms: int) -> Structure:
        self._count("nvmlEventSetWait_v2")
        if not self._events:
            # A GPU that is lost ends the wait; else nothing happens before the time is up.
            lost = any(self.gpus[index].lost for index in self._registered)
            _fail(pynvml.NVML_ERROR_GPU_IS_LOST if lost else pynvml.NVML_ERROR_TIMEOUT)
        gpu, kind, data = self._events.popleft()
        return pynvml.c_nvmlEventData_t(
            device=_device(gpu),
            eventType=kind,
            eventData=data,
            gpuInstanceId=0xFFFFFFFF,
            computeInstanceId=0xFFFFFFFF,
        )

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.missing:
            _fail(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _gpu(self, name: str, handle: Handle) -> FakeGpu:
        self._count(name)
        if not self.initialised:
            _fail(pynvml.NVML_ERROR_UNINITIALIZED)
        gpu = self.gpus[_address(handle)[0]]
        if gpu.lost:
            _fail(pynvml.NVML_ERROR_GPU_IS_LOST)
        _fail(gpu.errors.get(name, pynvml.NVML_SUCCESS))
        return gpu

    def _slice(self, handle: Handle) -> FakeSlice | None:
        index, mig = _address(handle)
        return None if mig is None else (self.gpus[index].slices or ())[mig]

    def _take(self, sample: Structure, handle: Handle, gpu_instance: int | None) -> Structure:
        self._taken += 1
        self._samples[_value_of(sample)] = (handle, gpu_instance, self._taken)
        return sample

    def _metrics(self, handle: Handle, gpu_instance: int | None) -> Mapping[int, float]:
        gpu = self._gpu("metrics of a sample", handle)
        if gpu_instance is None:
            return gpu.gpm or {}
        return next(mig.gpm for mig in gpu.slices or () if mig.gpu_instance == gpu_instance)


def _fail(code: int) -> None:
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)


def _device(index: int, mig: int | None = None) -> Handle:
    number = (index + 1) * 0x100 + (0 if mig is None else mig + 1)
    return ctypes.cast(ctypes.c_void_p(number), pynvml.c_nvmlDevice_t)


def _address(handle: Handle) -> tuple[int, int | None]:
    index, mig = divmod(_value_of(handle), 0x100)
    return index - 1, mig - 1 if mig else None


def _owner(sample: tuple[Handle, int | None, int]) -> tuple[int, int | None]:
    return _value_of(sample[0]), sample[1]


def _value_of(pointer: Structure) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
