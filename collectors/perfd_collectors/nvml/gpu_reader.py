"""Reads one GPU, or one MIG slice, into a row of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pynvml

from perfd_collectors.nvml.columns import FAST_FIELDS, INDEX, SLOW_FIELDS, NvmlMetric
from perfd_collectors.nvml.gpm import GpmRequests, GpmSampler, open_gpm
from perfd_collectors.nvml.nvml_api import (
    Fault,
    Handle,
    Nvml,
    NvmlError,
    Structure,
    error_code,
    fault_of,
    fault_of_code,
)
from perfd_collectors.nvml.topology import GpuTarget

Row = list[float]
Reading = Callable[[Row], None]

_VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union, indexed by `nvmlValueType_t`."""


class GpuLost(Exception):
    """The GPU no longer responds; the collector continues without it."""


class GpuReader:
    """Reads one target. A value that NVML refuses permanently is not queried again, hence absent."""

    def __init__(self, nvml: Nvml, target: GpuTarget, requests: GpmRequests) -> None:
        self.target = target
        self._fast, self._slow = _slice_readings(nvml, target) if target.mig else _gpu_readings(nvml, target)
        self._gpm: GpmSampler | None = open_gpm(nvml, target, requests)

    def read(self, row: Row, now_s: float, *, slow: bool) -> None:
        """Fill a row. Raises `GpuLost` for a lost GPU, and `pynvml.NVMLError` when the driver is gone."""
        self._run(self._fast, row)
        if slow:
            self._run(self._slow, row)
        if self._gpm is not None:
            try:
                for column, value in self._gpm.read(now_s, slow=slow):
                    row[column] = value
            except NvmlError as error:
                if self._refused_permanently(error):
                    self.close()

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm is not None:
            gpm, self._gpm = self._gpm, None
            gpm.close()

    def _run(self, readings: list[Reading], row: Row) -> None:
        refused: list[Reading] = []
        for reading in readings:
            try:
                reading(row)
            except NvmlError as error:
                if self._refused_permanently(error):
                    refused.append(reading)
        for reading in refused:
            readings.remove(reading)

    def _refused_permanently(self, error: Exception) -> bool:
        fault = fault_of(error)
        if fault is Fault.LOST:
            raise GpuLost(self.target.entity) from error
        if fault is Fault.GONE:
            raise error
        return fault is Fault.NEVER


def _gpu_readings(nvml: Nvml, target: GpuTarget) -> tuple[list[Reading], list[Reading]]:
    gpu = target.handle
    fast: list[Reading] = [
        _utilization(nvml, gpu),
        _value("power_w", nvml.nvmlDeviceGetPowerUsage, gpu, per_unit=1e3),
        _value("temperature_celsius", nvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU),
        _value("sm_clock_hz", nvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM, per_unit=1e-6),
        _value("memory_clock_hz", nvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_MEM, per_unit=1e-6),
        _memory(nvml, gpu),
        _value("clocks_event_reasons_bits", _event_reasons(nvml, gpu), gpu),
        _value("power_limit_w", nvml.nvmlDeviceGetEnforcedPowerLimit, gpu, per_unit=1e3),
        _Fields(nvml, gpu, FAST_FIELDS),
    ]
    return fast, [_Fields(nvml, gpu, SLOW_FIELDS)]


def _slice_readings(nvml: Nvml, target: GpuTarget) -> tuple[list[Reading], list[Reading]]:
    """Power, heat and clocks are the whole GPU's: its own row has them."""
    return [_memory(nvml, target.handle)], []


def _value(column: str, call: Callable[..., int], *arguments: object, per_unit: float = 1.0) -> Reading:
    position = INDEX[column]

    def read(row: Row) -> None:
        row[position] = call(*arguments) / per_unit

    return read


def _utilization(nvml: Nvml, gpu: Handle) -> Reading:
    busy, memory_busy = INDEX["busy_ratio"], INDEX["memory_busy_ratio"]

    def read(row: Row) -> None:
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        row[busy] = rates.gpu / 100
        row[memory_busy] = rates.memory / 100

    return read


def _memory(nvml: Nvml, device: Handle) -> Reading:
    used, total = INDEX["memory_used_bytes"], INDEX["memory_total_bytes"]

    def read(row: Row) -> None:
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        row[used] = float(memory.used)
        row[total] = float(memory.total)

    return read


def _event_reasons(nvml: Nvml, gpu: Handle) -> Callable[[Handle], int]:
    """The call by its current name, or by its name in drivers before 535."""
    try:
        nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except NvmlError as error:
        if error_code(error) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            return nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return nvml.nvmlDeviceGetCurrentClocksEventReasons


class _Fields:
    """Reads several fields in one driver call; permanently refused ones are dropped."""

    def __init__(self, nvml: Nvml, gpu: Handle, fields: Sequence[NvmlMetric]) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._select(fields)

    def __call__(self, row: Row) -> None:
        if not self._ids:
            return
        values = self._nvml.nvmlDeviceGetFieldValues(self._gpu, self._ids)
        refused: list[int] = []
        for number, value, (column, per_unit) in zip(self._ids, values, self._columns, strict=True):
            code = value.nvmlReturn
            if code == pynvml.NVML_SUCCESS:
                row[column] = _number(value) / per_unit
            elif fault_of_code(code) is Fault.NEVER:
                refused.append(number)
        if refused:
            self._select([field for field in self._fields if field.id not in refused])

    def _select(self, fields: Sequence[NvmlMetric]) -> None:
        self._fields = fields
        self._ids = [field.id for field in fields]
        self._columns = [(INDEX[field.column], field.per_unit) for field in fields]


def _number(value: Structure) -> float:
    kind = value.valueType
    if not 0 <= kind < len(_VALUE_OF_TYPE):
        return math.nan
    return float(getattr(value.value, _VALUE_OF_TYPE[kind]))
