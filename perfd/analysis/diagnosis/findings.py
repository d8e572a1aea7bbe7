"""The facts that a diagnosis rests on, and the form of what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.communication import CaptureEvidence, Communication
from perfd.analysis.hang import Hang
from perfd.analysis.steps import (
    DataLoading,
    Efficiency,
    GpuActivity,
    HeldClock,
    Memory,
    Optimizer,
    Pipeline,
    StepBreakdown,
    StepTime,
)
from perfd.analysis.stragglers import RankSlowdown, Straggler, UnequalSequences, WaitingPair
from perfd.model import ParallelLayout

FEWEST_STEPS = 3
"""The median of so many steady steps bears an odd one; of fewer nothing is said of where the time goes."""


class Kind(StrEnum):
    """What limits a job."""

    NONE = "none"
    """Nothing that perfd can see: it computes, and well."""
    COMPUTE = "compute"
    """It computes most of the time, but uses little of what the tensor cores can do."""
    PIPELINE_BUBBLE = "pipeline_bubble"
    PIPELINE_IMBALANCE = "pipeline_imbalance"
    COMMUNICATION = "communication"
    DATA_LOADING = "data_loading"
    OPTIMIZER = "optimizer"
    STRAGGLER = "straggler"
    THROTTLING = "throttling"
    MEMORY = "memory"
    HOST_BOUND = "host_bound"
    """The GPU has nothing to run; without a capture it is not known whether launches or waits are why."""
    LAUNCH_BOUND = "launch_bound"
    """The GPU has nothing to run because the host has not launched, or its kernels are tiny."""
    SYNC_BOUND = "sync_bound"
    """The GPU runs dry because the host waits for it."""
    MEMORY_BOUND = "memory_bound"
    """Kernels wait for the GPU's own memory, not for its tensor cores."""
    HOST_TRANSFER = "host_transfer"
    """Copies between the host's memory and the GPU's."""
    LINK_DEGRADATION = "link_degradation"
    """A group's transfers take far longer than they could; no rank is to blame."""
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    """Sequences of unequal length make ranks late in turn; no rank is to blame."""
    HANG = "hang"
    """The job stands still."""
    MISSING_TELEMETRY = "missing_telemetry"
    """Some ranks say nothing, so what depends on all of them is not judged."""
    ANALYSIS_FAILED = "analysis_failed"
    """perfd itself failed at this job, so nothing of it is known."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who is to blame: a rank or stage by its number, a GPU as `node/index`."""

    kind: str
    id: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that costs the job time, with its evidence."""

    kind: Kind
    confidence: float
    """0 to 1: 0.9 two independent sources agree, 0.8 measured directly, 0.6 measured in part or by
    bounds, 0.4 expected or indirect, 0 unknown."""
    culprits: Sequence[Culprit] = ()
    evidence: Sequence[str] = ()
    """Sentences with numbers and their source."""
    recommendation: str = ""
    lost_ratio: float | None = None
    """About how much of a step it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvidence:
    """What the rest of the analysis found about steady steps."""

    parallel: ParallelLayout
    efficiency: Efficiency
    communication: Communication
    pipeline: Pipeline
    data: DataLoading
    optimizer: Optimizer
    breakdown: StepBreakdown
    memory: Memory
    step_time: StepTime
    steady_steps: int
    """How many steps the steady lines cover."""
    activity: GpuActivity
    nccl: NcclSummary = field(default_factory=NcclSummary)
    slowdowns: Sequence[RankSlowdown] = ()
    stragglers_by_timers: Sequence[Straggler] = ()
    stragglers_by_activity: Sequence[Straggler] = ()
    activity_undecided: bool = False
    """GPUs are read that may yet show who is slow, in too few steps so far."""
    idle_ratio: float | None = None
    """How much more of the time than its peers' the idlest GPU runs no kernel; None where one is not seen."""
    busier_ratio: float | None = None
    """How much more active than its peers' the busiest GPU is; the same."""
    held_clocks: Sequence[HeldClock] = ()
    timers_hold_waiting: bool = False
    """Whether what is timed as forward and backward may be waiting for other ranks."""
    waiting_pair: WaitingPair | None = None
    sequences: UnequalSequences | None = None
    hang: Hang | None = None
    capture: CaptureEvidence | None = None
    """What the newest capture showed, which need not be of the job as it is now."""
    silent_gpu_ranks: Sequence[int] = ()
    """Ranks whose GPU nobody reads, although those of others are read."""
    transport_remarks: Sequence[str] = ()
    """What NCCL's own log says of slow transports."""
    untimed: bool = False
    """Whether NCCL counts operations on its ranks, and tells of none how long it was on the GPU."""
    wrong_times: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By what was said of them, ranks of which NCCL tells times that cannot be."""
    nodes: int = 0
    """Nodes that the job's GPUs are read on."""
    nccl_may_use_pcie: bool = False
    """Whether ranks send to each other, and NVLink is not known to join all GPUs of a node."""
    gpu_seen: bool = False
    """Whether perfd knows of any GPU of the job: of one that runs on CPUs it does not."""

    @property
    def too_few_steps(self) -> bool:
        """Whether shares of a step come from so few that they may be chance; a job without a log has none."""
        return 0 < self.steady_steps < FEWEST_STEPS
