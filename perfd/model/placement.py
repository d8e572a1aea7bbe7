"""GPUs of a node, placement of ranks, and serving engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from perfd.model.job_description import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU of a node. A MIG slice has the `index` of its parent."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    max_sm_clock_hz: float | None = None
    mig: bool = False
    gpu_instance: int | None = None
    """Of a MIG slice."""

    @property
    def entity(self) -> str:
        """The entity of its rows of scope `GPU`: `0`, or `0/3` for the slice with GPU instance 3."""
        return str(self.index) if self.gpu_instance is None else f"{self.index}/{self.gpu_instance}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAllocation:
    """A GPU or MIG slice that the kubelet gave to a container."""

    uuid: str
    """As NVML and the kubelet's pod-resources API have it: `GPU-...`, `MIG-...`."""
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAllocations:
    """All GPUs of a node that containers have; replaces the record before, also when it is empty."""

    devices: Sequence[GpuAllocation] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """The placement of a rank. `pid` is that in the host's namespace."""

    job: str
    rank: int
    local_rank: int | None = None
    world_size: int | None = None
    gpu: int | None = None
    pid: int | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    """The pod's host name, which may lack a suffix of the pod's name."""
    started_unix_ns: int | None = None
    """When its process started, by the node's clock."""
    time_limit_unix_s: float | None = None
    """When the scheduler ends the job at the latest, as the process was started with it."""


class ServerRole(StrEnum):
    """The phases of a request that a serving engine computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Engine, version, model and layout of a server; sent again on change."""

    server: str
    """The entity of its rows of scope `SERVER`."""
    engine: str
    """`sglang`, `vllm`."""
    version: str | None = None
    model: str | None = None
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    role: ServerRole | None = None
