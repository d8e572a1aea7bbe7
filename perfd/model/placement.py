"""What is where: the GPUs of a node, ranks on them, and serving engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from perfd.model.job_description import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU of a node, as NVML names it. A MIG slice has `index` of its parent."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    max_sm_clock_hz: float | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Where a rank of a job runs. `pid` is the host's."""

    job: str
    rank: int
    local_rank: int | None = None
    world_size: int | None = None
    gpu: int | None = None
    pid: int | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    """As the pod calls itself, which may lack what its owner put behind the name."""
    started_unix_ns: int | None = None
    """When its process started, by the node's clock."""


class ServerRole(StrEnum):
    """What a serving engine does of each request."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Which engine a server is and what it serves; sent anew when that changes."""

    server: str
    """The entity of its rows of scope `SERVER`."""
    engine: str
    """`sglang`, `vllm`."""
    version: str | None = None
    model: str | None = None
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    role: ServerRole | None = None
