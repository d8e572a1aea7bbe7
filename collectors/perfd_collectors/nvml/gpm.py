"""GPM, the hardware counters of Hopper and later GPUs, as means between two samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pynvml

from perfd_collectors.nvml.columns import GPM_METRICS, INDEX, SLOW_GPM_METRICS, NvmlMetric
from perfd_collectors.nvml.nvml_api import Nvml, NvmlError, Structure
from perfd_collectors.nvml.topology import GpuTarget

MIN_INTERVAL_S = 0.099
"""NVML requires 100 ms between the two samples of a pair, less 1 ms for timer jitter at 10 Hz."""


class GpmRequest:
    """A request buffer for `nvmlGpmMetricsGet`: filled once, used for every GPU.

    pynvml sizes the structure for every metric of its own version. The driver
    reads and writes only the first `numMetrics`.
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
    """The request for each sample, and the one for all metrics every `slow_interval_s`."""

    def __init__(self) -> None:
        self.fast = GpmRequest([metric for metric in GPM_METRICS if metric.name not in SLOW_GPM_METRICS])
        self.slow = GpmRequest(GPM_METRICS)


class GpmSampler:
    """GPM of a GPU or MIG slice. Pairs each sample with the previous one, so that no call waits."""

    def __init__(self, nvml: Nvml, target: GpuTarget, requests: GpmRequests) -> None:
        self._nvml = nvml
        self._target = target
        self._requests = requests
        self._previous: Structure = nvml.nvmlGpmSampleAlloc()
        self._next: Structure = nvml.nvmlGpmSampleAlloc()
        self._previous_s: float | None = None

    def read(self, now_s: float, *, slow: bool) -> Iterable[tuple[int, float]]:
        """The means since the last call, by the position of their column; none before the second sample.

        Raises `pynvml.NVMLError`; the next call then starts a new pair.
        """
        if self._previous_s is not None and now_s - self._previous_s < MIN_INTERVAL_S:
            return ()
        previous_s, self._previous_s = self._previous_s, None
        self._sample(self._next)
        request = self._requests.slow if slow else self._requests.fast
        means = () if previous_s is None else self._means(request)
        self._previous, self._next = self._next, self._previous
        self._previous_s = now_s
        return means

    def close(self) -> None:
        """Free both samples."""
        for sample in (self._previous, self._next):
            self._nvml.nvmlGpmSampleFree(sample)

    def _sample(self, into: Structure) -> None:
        if self._target.gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._target.handle, into)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._target.parent, self._target.gpu_instance, into)

    def _means(self, request: GpmRequest) -> Iterable[tuple[int, float]]:
        structure = request.structure
        structure.sample1 = self._previous
        structure.sample2 = self._next
        self._nvml.nvmlGpmMetricsGet(structure)
        values = [
            slot.value if slot.nvmlReturn == pynvml.NVML_SUCCESS else math.nan for slot, _, _ in request.slots
        ]
        # At 10 Hz the driver sometimes returns only zeros because its counters have not advanced, even at
        # 500 W. An idle GPU has at least PCIe traffic, from being queried.
        if not any(values):
            return ()
        # A GPU with power-gated memory reports success and NaN for the DRAM.
        return [
            (column, value / per_unit if math.isfinite(value) else math.nan)
            for value, (_, column, per_unit) in zip(values, request.slots, strict=True)
        ]


def open_gpm(nvml: Nvml, target: GpuTarget, requests: GpmRequests) -> GpmSampler | None:
    """A sampler for the target; None if its GPU or driver has no GPM."""
    try:
        supported = nvml.nvmlGpmQueryDeviceSupport(target.parent).isSupportedDevice
        return GpmSampler(nvml, target, requests) if supported else None
    except NvmlError:
        return None
