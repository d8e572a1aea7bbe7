"""The `nvml` collector: one table per collect, with one row per responding GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pynvml

from perfd.collector import Options, Settings
from perfd.errors import Unavailable
from perfd.model import Event, EventKind, GpuInfo, Record, SampleTable, Scope
from perfd_collectors.nvml.columns import FAST_FIELDS, INDEX, NAMES, SLOW_FIELDS, NvmlMetric
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
    start,
    unavailable,
)
from perfd_collectors.nvml.topology import GpuTarget, describe, optional, targets_of

Row = list[float]
Reading = Callable[[Row], None]

_VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union, indexed by `nvmlValueType_t`."""
DESCRIBE_EVERY_S = 60.0
"""How often `GpuInfo` is repeated, for aggregators that start after the agent. Chosen, not measured."""


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


class NvmlOptions(Options, frozen=True):
    """Options of the `nvml` collector."""

    slow_interval_s: float = 10.0
    """How often to read values that are slow to read or rarely change: energy, ECC, remapped rows and
    others."""


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU with its MIG slices; replaced when these change."""

    identities: Sequence[tuple[str, str | None]]
    """Entity and UUID of each, compared to detect a change."""
    infos: Sequence[GpuInfo]
    readers: Sequence[GpuReader]


class NvmlCollector:
    """Samples every GPU of the node: GPM as means since the previous call, the rest as instantaneous values.

    Raises `Unavailable` without a driver, and when no GPU responds.
    """

    def __init__(self, nvml: Nvml, options: NvmlOptions, settings: Settings) -> None:
        start(nvml, settings.sys)
        self._nvml = nvml
        self._clock = settings.clock
        self._slow_interval_s = options.slow_interval_s
        self._requests = GpmRequests()
        self._gpus: dict[int, _Gpu] = {}
        self._lost: set[int] = set()
        self._unreported: list[tuple[int, str]] = []
        self._slow_due_s = self._describe_due_s = -math.inf
        self._open = True
        try:
            self._rescan()
            self._require_gpus()
        except Unavailable:
            self.close()
            raise

    def collect(self) -> Sequence[Record]:
        now_ns, now_s = self._clock.unix_ns(), self._clock.monotonic_s()
        slow = now_s >= self._slow_due_s
        infos: Sequence[GpuInfo] = ()
        if slow:
            self._slow_due_s = now_s + self._slow_interval_s
            infos = self._changed_infos(now_s)
        entities, rows = self._read(now_s, slow=slow)
        records: list[Record] = [*infos, *self._lost_events(now_ns)]
        if rows:
            records.append(_table(now_ns, entities, rows))
        if not records:
            self._require_gpus()
        return records

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            for index in list(self._gpus):
                self._drop(index)
            self._nvml.nvmlShutdown()
        except NvmlError:
            return  # The driver was unloaded first, which freed everything.

    def _read(self, now_s: float, *, slow: bool) -> tuple[list[str], list[Row]]:
        entities: list[str] = []
        rows: list[Row] = []
        for index, gpu in list(self._gpus.items()):
            fresh = [[math.nan] * len(NAMES) for _ in gpu.readers]
            try:
                for reader, row in zip(gpu.readers, fresh, strict=True):
                    reader.read(row, now_s, slow=slow)
            except GpuLost as lost:
                self._lose(index, _lost_message(index, error_code(lost.__cause__ or lost)))
                continue
            except NvmlError as error:
                raise unavailable(error) from error
            self._lost.discard(index)
            entities += [reader.target.entity for reader in gpu.readers]
            rows += fresh
        return entities, rows

    def _changed_infos(self, now_s: float) -> Sequence[GpuInfo]:
        before = self._infos()
        self._rescan()
        infos = self._infos()
        if infos == before and now_s < self._describe_due_s:
            return ()
        self._describe_due_s = now_s + DESCRIBE_EVERY_S
        return infos

    def _infos(self) -> list[GpuInfo]:
        return [info for gpu in self._gpus.values() for info in gpu.infos]

    def _rescan(self) -> None:
        """Detect GPUs that returned, changed their MIG slices, or were lost."""
        try:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                self._rescan_gpu(index)
        except NvmlError as error:
            raise unavailable(error) from error
        self._gpus = dict(sorted(self._gpus.items()))

    def _rescan_gpu(self, index: int) -> None:
        try:
            targets = targets_of(self._nvml, index)
            uuids = [optional(self._nvml.nvmlDeviceGetUUID, target.handle) for target in targets]
            identities = [(target.entity, uuid) for target, uuid in zip(targets, uuids, strict=True)]
            if index in self._gpus and self._gpus[index].identities == identities:
                return
            infos = [describe(self._nvml, target) for target in targets]
        except NvmlError as error:
            fault = fault_of(error)
            if fault is Fault.GONE:
                raise
            if fault is not Fault.NEVER:
                self._lose(index, _lost_message(index, error_code(error)))
            return
        self._drop(index)
        readers = [GpuReader(self._nvml, target, self._requests) for target in targets]
        self._gpus[index] = _Gpu(identities, infos, readers)

    def _require_gpus(self) -> None:
        if not self._gpus:
            raise Unavailable(
                "The NVIDIA driver is loaded, but no GPU responds: check `nvidia-smi`, and whether this"
                " container has GPUs assigned."
            )

    def _lose(self, index: int, message: str) -> None:
        self._drop(index)
        if index not in self._lost:
            self._lost.add(index)
            self._unreported.append((index, message))

    def _drop(self, index: int) -> None:
        gpu = self._gpus.pop(index, None)
        for reader in gpu.readers if gpu else ():
            reader.close()

    def _lost_events(self, now_ns: int) -> list[Event]:
        lost, self._unreported = self._unreported, []
        return [
            Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=now_ns, message=message, gpu=index)
            for index, message in lost
        ]


def _lost_message(index: int, code: int) -> str:
    return (
        f"GPU {index} no longer responds (NVML return code {code}): look for XID 79 in the kernel log;"
        " the GPU needs a reset, or the node a reboot."
    )


def _table(now_ns: int, entities: Sequence[str], rows: Sequence[Row]) -> SampleTable:
    return SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[now_ns] * len(rows),
        entities=entities,
        columns={
            name: values
            for name, values in zip(NAMES, zip(*rows, strict=True), strict=True)
            if not all(map(math.isnan, values))
        },
    )
