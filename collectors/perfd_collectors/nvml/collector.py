"""The `nvml` collector: one table per collect, with one row per responding GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfd.collector import Options, Settings
from perfd.errors import Unavailable
from perfd.model import Event, EventKind, GpuInfo, Record, SampleTable, Scope
from perfd_collectors.nvml.columns import NAMES
from perfd_collectors.nvml.gpm import GpmRequests
from perfd_collectors.nvml.gpu_reader import GpuLost, GpuReader, Row
from perfd_collectors.nvml.nvml_api import Fault, Nvml, NvmlError, error_code, fault_of, start, unavailable
from perfd_collectors.nvml.topology import describe, optional, targets_of

DESCRIBE_EVERY_S = 60.0
"""How often `GpuInfo` is repeated, for aggregators that start after the agent. Chosen, not measured."""


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
