"""perfd's series of GPUs by OpenTelemetry's names for hardware (semantic conventions `hw.*`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from perfd.metrics.series import SeriesKey


class Instrument(Enum):
    """How the points of a metric add up."""

    GAUGE = "gauge"
    UP_DOWN_COUNTER = "up-down counter"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionalMetric:
    """A metric of the conventions."""

    name: str
    unit: str
    instrument: Instrument = Instrument.GAUGE
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Besides those of the GPU."""


_GPU = {"hw.type": "gpu"}
GPU_METRICS: Mapping[str, ConventionalMetric] = {
    "perfd_gpu_busy_ratio": ConventionalMetric(
        name="hw.gpu.utilization", unit="1", attributes={"hw.gpu.task": "general"}
    ),
    "perfd_gpu_memory_used_bytes": ConventionalMetric(
        name="hw.gpu.memory.usage", unit="By", instrument=Instrument.UP_DOWN_COUNTER
    ),
    "perfd_gpu_memory_total_bytes": ConventionalMetric(
        name="hw.gpu.memory.limit", unit="By", instrument=Instrument.UP_DOWN_COUNTER
    ),
    "perfd_gpu_power_watts": ConventionalMetric(name="hw.power", unit="W", attributes=_GPU),
    "perfd_gpu_energy_joules_total": ConventionalMetric(
        name="hw.energy", unit="J", instrument=Instrument.COUNTER, attributes=_GPU
    ),
    "perfd_gpu_temperature_celsius": ConventionalMetric(name="hw.temperature", unit="Cel", attributes=_GPU),
    "perfd_gpu_ecc_corrected_errors_total": ConventionalMetric(
        name="hw.errors",
        unit="{error}",
        instrument=Instrument.COUNTER,
        attributes={**_GPU, "error.type": "ecc_corrected"},
    ),
    "perfd_gpu_ecc_uncorrected_errors_total": ConventionalMetric(
        name="hw.errors",
        unit="{error}",
        instrument=Instrument.COUNTER,
        attributes={**_GPU, "error.type": "ecc_uncorrected"},
    ),
}
"""By perfd's name. What the conventions have no name for is only under perfd's."""

_OF_POD = {
    "cluster": "k8s.cluster.name",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "container": "k8s.container.name",
}


def gpu_attributes(key: SeriesKey) -> dict[str, str]:
    """The attributes of a GPU's series in the conventions: the GPU, its host, and the pod that has it."""
    labels = dict(key.labels)
    node, gpu = labels.get("node", ""), labels.get("gpu", "")
    # Without a pod, cluster and namespace are another scheduler's.
    pod = {_OF_POD[name]: text for name, text in labels.items() if name in _OF_POD and "pod" in labels}
    return {**pod, "host.name": node, "hw.id": f"{node}/gpu{gpu}", "hw.name": f"gpu{gpu}"}
