"""What the analysis reads: the state of one job as arrays. NaN is absent in every array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from perfd.model import (
    CollectiveProgress,
    Event,
    GpuColumn,
    GpuInfo,
    JobDescription,
    MemoryReport,
    RankColumn,
    RankPlacement,
    StepDoubt,
    StepSource,
    TimingSource,
    TraceShares,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Progress lines of a training log, one row each, in the order of `step`. All columns have n rows."""

    step: Ints
    time_unix_s: Floats
    """When the step ended."""
    step_time_s: Floats
    steps_covered: Ints
    warmup: Bools
    """The framework's own mark: the average holds a first iteration after start or resume."""
    flops_per_s_per_gpu: Floats
    tokens_per_s: Floats
    samples_per_s: Floats
    global_batch_size: Floats
    loss: Floats
    """The first loss of the line."""
    learning_rate: Floats

    def rows(self, chosen: Bools | slice) -> StepTable:
        """Those lines only, by a mask or their places; of places the columns are views."""
        return StepTable(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTable:
    """Phase timers by name; rows match `StepTable.step` by `step`, not by position."""

    step: Ints
    min_s: Mapping[str, Floats]
    max_s: Mapping[str, Floats]
    by_rank_s: Mapping[str, Floats]
    """Name to an (n, world_size) array; only names that were reported by rank."""

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKey:
    """One GPU of the job: where it is, and the rank that it serves when that is known."""

    node: str
    gpu: str
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTable:
    """GPU samples: t instants by g GPUs, one (t, g) array per column."""

    time_unix_s: Floats
    gpus: Sequence[GpuKey]
    metrics: Mapping[GpuColumn, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How NCCL does an operation, in its own words; empty and None if unreported."""

    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveStack:
    """c communicators of g ranks with one kind of operation, side by side; thousands are worked on at once.

    n is the most operations that one of them has; rows of others are absent from their own `lengths` on. A
    send and its receive are one operation of two ranks, the sender first. NaN where a rank has not reported.
    """

    operation: str
    communicators: Sequence[str]
    ranks: Ints
    """(c, g), global ones"""
    lengths: Ints
    """(c,): how many operations of each are known, of n."""
    sequence: Ints
    """(c, n), -1 where absent"""
    durations_s: Floats
    """(c, n, g)"""
    size_bytes: Floats
    """(c, n)"""
    gpu_starts_ns: Ints | None = None
    """(c, n, g), by the clock of each rank's GPU, negative where unknown; None or empty if not needed."""
    kernel_ratio: Floats
    """(c, g): share of recent time that each rank spent in kernels of this kind, waiting included. The
    operations here are a part of those, as many of a frequent kind as of a rare one."""
    operations_per_s: Floats
    """(c,), as the ones below, NaN where unknown: how many of this kind a rank did a second lately, those
    that are not here included."""
    best_s_per_byte: Floats
    """What a byte took in the communicator's own best stretch of earlier operations of its largest size."""
    best_size_bytes: Floats
    """That size; those of half of it and more count."""
    counted_s: Floats | None = None
    """(c,): over how long they were counted; None if unreported."""
    renewed: Bools | None = None
    """(c,): whether it took the place of another one of its ranks some seconds ago; None if unreported."""
    timings: Sequence[TimingSource]
    sources: Sequence[str]
    """Who recorded them when it was not perfd's plugin, as in `CollectiveTimes`."""
    methods: Sequence[Method] | None = None
    """Of the largest of the newest operations; None if unreported for all communicators."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclTimeTable:
    """Time that each of n ranks' GPUs had an NCCL kernel on it, waiting included, in an interval of time."""

    rank: Ints
    """(n,), as all others; NaN is unknown."""
    busy_s: Floats
    """NaN if the rank's NCCL reports no time on the GPU."""
    span_s: Floats
    lost_operations: Ints
    operations: Floats
    """Operations that the rank began since its start."""
    still_s: Floats
    """How long that number had not changed at the newest reading."""
    read_s: Floats
    """When the newest reading came, by the clock that the aggregator measures spans with."""
    lately_ratio: Floats
    """The share of time in kernels of the newest readings alone, which `busy_s` follows slowly."""

    def rows(self, chosen: Bools | Ints) -> NcclTimeTable:
        """Those ranks only."""
        return NcclTimeTable(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    def __len__(self) -> int:
        return len(self.rank)


_NO_RANKS, _NO_NUMBERS = np.zeros(0, np.int64), np.zeros(0)
NO_NCCL_TIMES = NcclTimeTable(
    rank=_NO_RANKS,
    busy_s=_NO_NUMBERS,
    span_s=_NO_NUMBERS,
    lost_operations=_NO_RANKS,
    operations=_NO_NUMBERS,
    still_s=_NO_NUMBERS,
    read_s=_NO_NUMBERS,
    lately_ratio=_NO_NUMBERS,
)
"""Of a job whose ranks report none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPace:
    """Which operations of a rank show steps, in a job whose log shows none."""

    communicator: str
    operation: str
    per_step: float
    """This many of them are a step."""
    row_end_sequence: int
    """The newest one within the newest row of the step table."""
    doubt: StepDoubt | None
    """What a step may be instead; None where the evidence leaves nothing else."""
    exact: bool = False
    """Whether rows end where steps do, by when operations ran; else anywhere in a step."""
    pauses: StepPauses | None = None

    @property
    def certain(self) -> bool:
        return self.doubt is None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostWaitTable:
    """What ranks' hosts wait for, by rank; NaN is unknown."""

    rank: Ints
    """(n,)"""
    waits: Mapping[RankColumn, Floats]
    """(n,) each: medians over about the newest half minute."""
    newest: Mapping[RankColumn, Floats] = field(default_factory=dict)
    """(n,) each: the newest reading."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchTable:
    """What ranks' processes did on their hosts, by rank, over windows up to the newest reading.

    w windows, the shortest first, cover about 2, 4, 10 and 60 s; NaN is unknown.
    """

    rank: Ints
    """(n,)"""
    span_s: Floats
    """(w, n)"""
    asleep_ratio: Floats
    """(w, n): the share of time in which neither the main thread nor one of autograd had anything to run."""
    loader_busy_ratio: Floats
    """(w, n): the share of time in which a data loader worker had something to run, on average."""
    loader_workers: Floats
    """(n,)"""
    age_s: Floats
    """(n,): how long ago the windows end."""
    io_bytes_per_s: Floats | None = None
    """(w, n): what the rank's process read and wrote; None if not needed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPauses:
    """Of the newest steps by operations, what comes after the last reduction of each, on one rank."""

    step: Ints
    """(k,)"""
    pause_s: Floats
    """(k,): until the first reduction of the next step."""
    lead_s: Floats
    """(k,): how long the host had enqueued that one before it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What the newest capture of a job whose traces were read showed, and when that was."""

    capture_id: str
    start_unix_s: float
    end_unix_s: float
    shares: TraceShares
    step_time_s: float | None = None
    """Median of the log's steps in that time; None when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobData:
    """All that is known of a job at one instant. What was never reported is empty or None."""

    name: str
    now_unix_s: float
    description: JobDescription | None
    steps: StepTable
    phases: PhaseTable
    gpu: GpuTable
    gpu_infos: Mapping[str, Sequence[GpuInfo]] = field(default_factory=dict)
    """By node."""
    ports_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """By node: what its InfiniBand and RoCE ports send at most together."""
    placements: Mapping[str, Sequence[RankPlacement]] = field(default_factory=dict)
    """By node."""
    gpu_sharers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By rank, the other jobs on its GPU that run and make steps."""
    memory: Sequence[MemoryReport] = ()
    """The newest report of each rank."""
    events: Sequence[Event] = ()
    collectives: Sequence[CollectiveStack] = ()
    """The newest operations of each communicator whose ranks are all known."""
    nccl: NcclTimeTable = NO_NCCL_TIMES
    """By rank, over the same recent time."""
    host_waits: HostWaitTable | None = None
    launches: LaunchTable | None = None
    """None where no agent reads them."""
    progress: Sequence[CollectiveProgress] = ()
    """The newest of each rank and communicator."""
    captured: Captured | None = None
    """It may be of an earlier run of that name."""
    step_source: StepSource | None = None
    """None without steps."""
    used_gpus: list[Sequence[GpuInfo]] = field(default_factory=list, init=False, repr=False, compare=False)
    """What `gpu_infos` found, once it did; a copy with other samples finds its own."""
    operation_pace: OperationPace | None = None
    """What shows the newest steps one by one; None where only a log shows steps, or nothing."""
    steps_by_operations: StepTable | None = None
    """Those that operations show, without a window: what was before a fault that lasts."""
    longest_pause_s: float = 0.0
    """The longest time between two steps since the job started last, of which `steps` may be a part."""
    log_silent_s: float | None = None
    started_unix_s: float | None = None
    run_began_unix_s: float | None = None
    """When it started last: as `started_unix_s`, or a restart since."""
    ended_unix_s: float | None = None

    @property
    def every_step(self) -> StepTable:
        """All steps by operations where these show them, else the newest lines."""
        return self.steps if self.steps_by_operations is None else self.steps_by_operations

    @property
    def step_doubt(self) -> StepDoubt | None:
        """What its steps may be instead; None where a log shows them."""
        return None if self.operation_pace is None else self.operation_pace.doubt
