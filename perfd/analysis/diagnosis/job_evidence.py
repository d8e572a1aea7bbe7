"""What a diagnosis rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.communication import CaptureEvidence, Communication
from perfd.analysis.findings import Software
from perfd.analysis.hang import Hang
from perfd.analysis.layout import TensorGroups
from perfd.analysis.steps import (
    ComputeChange,
    CriticalBatch,
    DataLoading,
    Efficiency,
    GpuActivity,
    HeldClock,
    IdleSince,
    LongerSteps,
    LongStepsCause,
    Memory,
    Optimizer,
    Pipeline,
    SleepingHosts,
    StepBreakdown,
    StepsSince,
    StepTime,
)
from perfd.analysis.stragglers import (
    ExpertImbalance,
    HostContention,
    PeriodicStall,
    RankSlowdown,
    ReadingRank,
    SharedGpus,
    Straggler,
    UnequalSequences,
    WaitingPair,
)
from perfd.model import JobDescription, ParallelLayout, StepDoubt, StepSource
from perfd.thresholds import THRESHOLDS

_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap")
"""Arguments of Megatron-LM, which communicates beside computation only with one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvidence:
    """What the rest of the analysis found about steady steps."""

    parallel: ParallelLayout
    description: JobDescription | None = None
    """What the job said of itself; None until it did."""
    software: Software = field(default_factory=Software)
    """What runs it, and which options it has set."""
    tensor_groups: TensorGroups | None = None
    efficiency: Efficiency
    communication: Communication
    pipeline: Pipeline
    data: DataLoading
    optimizer: Optimizer
    breakdown: StepBreakdown
    memory: Memory
    step_time: StepTime
    long_steps: LongStepsCause | None = None
    """What some steps are longer by, if a timer shows it."""
    batch: CriticalBatch = field(default_factory=CriticalBatch)
    steady_steps: int
    """How many steps the steady lines cover."""
    step_source: StepSource | None = None
    step_time_source: str = "log"
    """What shows how long single steps take."""
    step_doubt: StepDoubt | None = None
    of_earlier_start: bool = False
    """Whether the job's processes began after its newest step."""
    awaits_steps: bool = False
    """Whether the job's log names a framework, so that it will have steps, and has hardly begun to."""
    activity: GpuActivity
    nccl: NcclSummary = field(default_factory=NcclSummary)
    slowdowns: Sequence[RankSlowdown] = ()
    stragglers_by_timers: Sequence[Straggler] = ()
    stragglers_by_activity: Sequence[Straggler] = ()
    activity_undecided: bool = False
    """GPUs are read that may yet show who is slow, in too few steps so far."""
    pace_is_known: bool = True
    """Whether GPUs were seen at the pace of the newest line."""
    idle_ratio: float | None = None
    """How much more of the time than its peers' the idlest GPU runs no kernel; None where one is not seen."""
    busier_ratio: float | None = None
    """How much more active than its peers' the busiest GPU is; the same."""
    held_clocks: Sequence[HeldClock] = ()
    timers_hold_waiting: bool = False
    """Whether what is timed as forward and backward may be waiting for other ranks."""
    waiting_pair: WaitingPair | None = None
    sequences: UnequalSequences | None = None
    experts: ExpertImbalance | None = None
    change: ComputeChange | None = None
    longer_steps: LongerSteps | None = None
    longer_since: StepsSince | None = None
    """Without what GPUs do in longer steps, which is known seconds later."""
    only_reader: int | None = None
    """The rank that reads the data for all others, which has no peer; None where several read."""
    reading: ReadingRank | None = None
    """The rank that became slow by its own past, if it is that one."""
    idle_since: IdleSince | None = None
    sleeping: SleepingHosts | None = None
    hosts_seen: bool = False
    """Whether threads of hosts are seen, which show where loaders of all ranks are slow."""
    hosts_may_limit: bool = False
    """Whether no GPU is read, and hosts never sleep: they may limit the job."""
    awaits_hosts: bool = False
    """Whether hosts are read whose threads are to be known in a moment."""
    readers: frozenset[int] = frozenset()
    """In a job of unknown layout, ranks that may read the data of others."""
    computing_more: frozenset[int] = frozenset()
    """Ranks whose GPUs have lately had more work than those of the others."""
    asleep_together: float | None = None
    """The share of time that hosts of all ranks sleep at least while they wait for their data."""
    stall: PeriodicStall | None = None
    contention: Sequence[HostContention] = ()
    """What ranks' hosts wait for, the worst first."""
    cpu_wait_of_all: float = 0.0
    """The share of time that hosts of all ranks wait for CPUs at least; 0 where one of them is unknown."""
    shared: SharedGpus = field(default_factory=SharedGpus)
    """What runs beside the job under its name, or on its GPUs."""
    hang: Hang | None = None
    without_steps: str | None = None
    """That the job makes no more steps, whether it hangs or not."""
    capture: CaptureEvidence | None = None
    """What the newest capture showed, which need not be of the job as it is now."""
    silent_gpu_ranks: Sequence[int] = ()
    """Ranks whose GPU no agent reads, although those of others are read."""
    transport_remarks: Sequence[str] = ()
    """What NCCL's own log says of slow transports."""
    untimed: bool = False
    """Whether NCCL counts operations on its ranks, and reports of none how long it was on the GPU."""
    wrong_times: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By what was said of them, ranks for which NCCL reports times that cannot be."""
    nodes: int = 0
    """Nodes that the job's GPUs are read on."""
    nccl_may_use_pcie: bool = False
    """Whether ranks send to each other, and NVLink is not known to join all GPUs of a node."""
    gpu_seen: bool = False
    """Whether perfd knows of any GPU of the job: of one that runs on CPUs it does not."""

    @property
    def communication_may_overlap(self) -> bool:
        """Whether it may communicate beside computation, as DDP, FSDP, DeepSpeed and JAX do by default."""
        if self.description is None or not self.description.framework.lower().startswith("megatron"):
            return True
        return any(self.description.arguments.get(name) == "True" for name in _OVERLAPS)

    @property
    def too_few_steps(self) -> bool:
        """Whether shares of a step come from so few that they may be chance, or the first is yet to come."""
        awaited = self.steady_steps > 0 or self.awaits_steps
        return awaited and self.steady_steps < THRESHOLDS.steady_steps_count
