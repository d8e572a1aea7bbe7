"""GPM: what Hopper and later count in hardware, as means between two samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pynvml

from perfd_collectors.nvml.columns import GPM_METRICS, INDEX, SLOW_GPM_METRICS, NvmlMetric
from perfd_collectors.nvml.nvml_api import Nvml, NvmlError, Structure
from perfd_collectors.nvml.topology import GpuTarget

MIN_INTERVAL_S = 0.099
"""NVML asks for 100 ms between the two samples of a pair; the rest is a timer's jitter at 10 Hz."""


class GpmRequest:
    """A buffer of `nvmlGpmMetricsGet` that asks for some metrics: filled once, used for every GPU.

    pynvml sizes the structure for every metric of its own version. A driver
    reads and writes `numMetrics` of them, so only those are ours.
    """

    def __init__(self, metrics: Sequence[NvmlMetric]) -> None:
        self.structure: Structure = pynvml.c_nvmlGpmMetricsGet_t()
        self.structure.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self.structure.numMetrics = len(metrics)
        self.slots: list[tuple[Structure, int, float]] = []
        for position, metric in enumerate(metrics):
            slot = self.structure.metrics[position]
            slot.metricId = metric.id
            self.slots.append((slot, INDEX[metric.column], metric.per_unit))


class GpmRequests:
    """What is asked for each time, and what is asked for at the slow pace: all metrics."""

    def __init__(self) -> None:
        self.fast = GpmRequest([metric for metric in GPM_METRICS if metric.name not in SLOW_GPM_METRICS])
        self.slow = GpmRequest(GPM_METRICS)


class GpmSampler:
    """The GPM of one GPU, or of one MIG slice of it: pairs each sample with the one before, so none waits."""

    def __init__(self, nvml: Nvml, target: GpuTarget, requests: GpmRequests) -> None:
        self._nvml = nvml
        self._target = target
        self._requests = requests
        self._previous: Structure = nvml.nvmlGpmSampleAlloc()
        self._next: Structure = nvml.nvmlGpmSampleAlloc()
        self._previous_s: float | None = None

    def read(self, now_s: float, row: list[float], *, slow: bool) -> None:
        """Put the means since the last call into a row; nothing when there is no pair of samples yet.

        Raises `pynvml.NVMLError`, after which the next pair starts anew.
        """
        if self._previous_s is not None and now_s - self._previous_s < MIN_INTERVAL_S:
            return
        previous_s, self._previous_s = self._previous_s, None
        self._sample(self._next)
        if previous_s is not None:
            self._means(self._requests.slow if slow else self._requests.fast, row)
        self._previous, self._next = self._next, self._previous
        self._previous_s = now_s

    def close(self) -> None:
        """Free both samples."""
        for sample in (self._previous, self._next):
            self._nvml.nvmlGpmSampleFree(sample)

    def _sample(self, into: Structure) -> None:
        if self._target.gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._target.handle, into)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._target.parent, self._target.gpu_instance, into)

    def _means(self, request: GpmRequest, row: list[float]) -> None:
        structure = request.structure
        structure.sample1 = self._previous
        structure.sample2 = self._next
        self._nvml.nvmlGpmMetricsGet(structure)
        values = [
            slot.value if slot.nvmlReturn == pynvml.NVML_SUCCESS else math.nan for slot, _, _ in request.slots
        ]
        # Now and then, at 10 Hz, the counters have not moved and the driver makes zeros of it, on a GPU
        # at 500 W too. An idle GPU has PCIe traffic at least, from being asked.
        if any(values):
            for value, (_, column, per_unit) in zip(values, request.slots, strict=True):
                # A GPU that gates its memory answers NaN for the DRAM, and success.
                row[column] = value / per_unit if math.isfinite(value) else math.nan


def open_gpm(nvml: Nvml, target: GpuTarget, requests: GpmRequests) -> GpmSampler | None:
    """A sampler of the target, or None where its GPU or driver has no GPM."""
    try:
        supported = nvml.nvmlGpmQueryDeviceSupport(target.parent).isSupportedDevice
        return GpmSampler(nvml, target, requests) if supported else None
    except NvmlError:
        return None
