"""The records that collectors produce, the wire carries and the analysis reads.

Every record is frozen. SI base units, the unit is the last word of a name
(`_s`, `_ns`, `_bytes`, `_flops`, `_ratio` from 0 to 1). What is not known is
`None`, never zero; inside the columns of a `SampleTable` it is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias


class Scope(StrEnum):
    """What a row of a `SampleTable` is about; it says how to read its `entity`."""

    GPU = "gpu"
    """One GPU of the node; the entity is its NVML index (a MIG slice: `0/3`)."""
    NODE = "node"
    """The node as a whole; the entity is empty."""
    NIC = "nic"
    """A network interface or InfiniBand port; the entity is its name (`eth0`, `mlx5_0/1`)."""
    DISK = "disk"
    """A block device; the entity is its name."""
    RANK = "rank"
    """One rank of a job; the entity is `job/rank`."""
    SERVER = "server"
    """A serving engine; the entity is its name or `host:port`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """Numbers read at some instants: n rows by named columns.

    The metric name ends in its unit. NaN is "absent": a column has a value for
    each row, so absence needs a number that is none.
    """

    scope: Scope
    times_unix_ns: Sequence[int]
    entities: Sequence[str]
    columns: Mapping[str, Sequence[float]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """How a job is spread over ranks: sizes of the groups, 1 where a dimension is unused."""

    world_size: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None
    """Model chunks per pipeline stage (interleaved schedule); 1 without interleaving."""
    micro_batch_size: int | None = None
    global_batch_size: int | None = None

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches per step and pipeline, or None when a size is unknown."""
        if not (self.global_batch_size and self.micro_batch_size and self.dp):
            return None
        return self.global_batch_size // (self.micro_batch_size * self.dp) or None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaShape:
    """Multi-head latent attention (DeepSeek-V2): ranks and head sizes in elements."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """Mixture of experts: sizes in elements; `layer_pattern` has 1 for each expert layer."""

    experts: int
    top_k: int
    expert_ffn_size: int
    shared_expert_ffn_size: int = 0
    latent_size: int | None = None
    layer_pattern: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A transformer's shape, enough to count its floating-point operations."""

    layers: int
    hidden_size: int
    ffn_size: int
    attention_heads: int
    kv_heads: int
    """Key/value heads: equal to `attention_heads` without grouped-query attention."""
    head_size: int
    sequence_length: int
    vocab_size: int | None = None
    """Padded vocabulary; the head's matrix product is left out when it is unknown."""
    gated_mlp: bool = False
    """SwiGLU and alike: three matrices in the MLP instead of two."""
    attention_output_gate: bool = False
    moe: MoeShape | None = None
    mla: MlaShape | None = None
    mtp_layers: int = 0


class Recompute(StrEnum):
    """Which forward work the backward pass does again."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """What a job said about itself at its start; `None` where it said nothing."""

    job: str
    framework: str
    framework_version: str | None = None
    model: ModelShape | None = None
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    precision: str | None = None
    """The compute type that names the peak: `bf16`, `fp16`, `fp32`, `fp8`, `fp4`."""
    recompute: Recompute | None = None
    recompute_layers: int | None = None
    train_steps: int | None = None
    log_interval_steps: int | None = None
    parameters: float | None = None
    logged_flops_convention: str | None = None
    """The convention of the FLOP/s in the job's own log: `megatron-causal`, `megatron-full`, ..."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Options of the job as it printed them, those that perfd does not interpret too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One progress line of a training log. Times and rates are means over `steps_covered`."""

    job: str
    step: int
    time_unix_ns: int | None = None
    """When the line says it was printed, if it says so in a known time zone, else when it was read."""
    step_time_s: float | None = None
    steps_covered: int = 1
    warmup: bool = False
    """The average holds a first iteration after a start or resume, so no baseline may use it."""
    flops_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    """Of the whole job."""
    samples_per_s: float | None = None
    """Of the whole job."""
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    learning_rate: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    grad_norm: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    nan_steps: int | None = None
    energy_per_gpu_j: float | None = None
    power_per_gpu_w: float | None = None
    mfu_ratio: float | None = None
    """As printed by the job, by its own convention."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the line that perfd has no field for, by the key the line gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Time of one named phase, seconds per step; over ranks (`min`, `max`) or by rank."""

    min_s: float | None = None
    max_s: float | None = None
    by_rank: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhases:
    """A block of phase timers, matched to the step that it belongs to."""

    job: str
    step: int
    phases: Mapping[str, PhaseTime]
    """By the timer's own name, unknown names too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Device memory of a rank by its own allocator, in bytes."""

    job: str
    step: int | None
    rank: int | None
    allocated_bytes: float | None = None
    max_allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    max_reserved_bytes: float | None = None
    device_used_bytes: float | None = None


class EventKind(StrEnum):
    """What happened. Kinds are a closed list so that rules can name them."""

    CHECKPOINT = "checkpoint"
    """It was saved."""
    CHECKPOINT_STARTED = "checkpoint_started"
    """Told by those that say so at once: until it is saved ranks wait, which looks like a hang."""
    EVALUATION = "evaluation"
    PROFILE = "profile"
    JOB_STARTED = "job_started"
    JOB_ENDED = "job_ended"
    RESTARTED = "restarted"
    HARDWARE_ERROR = "hardware_error"
    """An XID, an ECC error or a lost GPU; `code` is the XID."""
    STRAGGLER_REPORT = "straggler_report"
    """The framework's own straggler line; `values` holds its numbers."""
    NCCL_WARNING = "nccl_warning"
    LOG_ERROR = "log_error"
    """A traceback, an out-of-memory error or a watchdog's message in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at an instant, to a job, a rank or a GPU."""

    kind: EventKind
    time_unix_ns: int
    message: str
    job: str | None = None
    step: int | None = None
    rank: int | None = None
    gpu: int | None = None
    code: int | None = None
    duration_s: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """How far a log was read: cumulative since the collector started."""

    job: str
    stream: str
    lines: int
    read_bytes: int
    unrecognised_lines: int
    last_line_unix_ns: int | None
    """When the newest line was read: a silent log is how a hang looks from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorHealth:
    """The runner's verdict on one run of a collector."""

    collector: str
    time_unix_ns: int
    duration_s: float
    success: bool
    message: str = ""


class TimingSource(StrEnum):
    """Whose clock timed a collective."""

    GPU = "gpu"
    """The GPU's own, from the first channel's start to the last one's stop."""
    PROXY = "proxy"
    """The host's, when NCCL's proxy thread noticed the kernel: late by its polling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """One rank's operations of one kind on one communicator within a window, reduced at the edge.

    The totals are over all operations. `sequences` and the columns below it are of those that were kept, so
    that ranks can be matched: when an agent must thin them out, it keeps the same sequence numbers on every
    rank. A duration includes waiting for the other ranks.
    """

    job: str
    rank: int
    communicator: str
    """NCCL's identity of the communicator in hexadecimal, the same on all its ranks."""
    communicator_rank: int | None = None
    communicator_size: int | None = None
    communicator_name: str = ""
    operation: str
    """As NCCL names it: `AllReduce`, `Send`, ..."""
    peer: int | None = None
    """Of a send or receive: the other side's rank in the communicator."""
    timing: TimingSource
    start_unix_ns: int
    end_unix_ns: int
    count: int
    total_bytes: float | None = None
    total_s: float
    min_s: float
    max_s: float
    algorithm: str = ""
    protocol: str = ""
    sequences: Sequence[int] = ()
    durations_ns: Sequence[int] = ()
    sizes_bytes: Sequence[int] = ()
    gpu_starts_ns: Sequence[int] = ()
    """Of sends and receives: when each began, by the clock of the rank's GPU, which no other one shares."""
    source: str = ""
    """Who recorded them when it was not perfd's plugin: `inspector`. Others may record a part only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveProgress:
    """How far one rank is on one communicator: what a hang is localised by.

    Sequence numbers count the operations of the communicator on that rank; they can be compared over ranks
    of one `communicator` and `source`. None where the source does not tell.
    """

    job: str
    rank: int
    communicator: str
    """An identity that all its ranks share: NCCL's, or the name of the process group."""
    communicator_name: str = ""
    members: Sequence[int] = ()
    """Global ranks of the communicator, empty when the source does not tell."""
    operation: str = ""
    """The newest operation that was enqueued and is not complete, else the newest one."""
    enqueued: int | None = None
    """Sequence number of the newest operation that the program asked for."""
    started: int | None = None
    """Of the newest one that began on the GPU."""
    completed: int | None = None
    time_unix_ns: int
    """When the newest of these happened, or was read."""
    source: str
    """`flight_recorder`, `nccl_plugin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilesRemoved:
    """Artefacts of a capture are no longer where they were reported."""

    capture_id: str
    paths: Sequence[str]
    reason: str
    """A sentence for people."""
    time_unix_ns: int


Record: TypeAlias = (
    SampleTable
    | GpuInfo
    | ServerInfo
    | RankPlacement
    | JobDescription
    | TrainingStep
    | StepPhases
    | MemoryReport
    | Event
    | LogProgress
    | CollectorHealth
    | CollectiveTimes
    | CollectiveProgress
    | CaptureFilesRemoved
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What an agent sends at once. Sequences start at 1 and have no gaps for one `agent_id`."""

    sequence: int
    sent_unix_ns: int
    records: Sequence[Record]
    dropped_records: int = 0
    """Records that this agent gave up since its start, because a queue or the spool was full."""
    unknown_records: int = 0
    """Set by the reader, never sent: records of a kind it does not know, which are not in `records`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShares:
    """Where the time of a capture's steps went: means over the ranks whose records are all there.

    compute + exposed communication + exposed copies + launch + synchronization + unexplained idle = 1.
    """

    ranks: tuple[int, ...]
    step_time_s: float | None = None
    """Median of the steps that are whole in the traces; None where they mark none."""
    compute_ratio: float
    matrix_ratio: float | None = None
    """Of compute, matrix products, attention and convolutions at most, by the names of kernels: one whose
    name says nothing counts as such."""
    communication_ratio: float
    """What compute hides included."""
    exposed_communication_ratio: float
    waiting_ratio: float | None = None
    """Of communication, what was waiting for other ranks; None where most of it could not be matched."""
    exposed_copies_ratio: float
    launch_ratio: float
    """Idle because the host had not launched, or the launch was on its way."""
    long_gaps_ratio: float
    """The part of it in gaps so long that the host must have done something else."""
    synchronization_ratio: float
    """Idle while the host waited for the GPU, or because it had."""
    unexplained_idle_ratio: float
    """Idle of ranks whose traces have no calls of the host."""


class CaptureTool(StrEnum):
    """A profiler that an agent can drive."""

    NSYS = "nsys"
    KINETO = "kineto"
    SGLANG = "sglang"
    VLLM = "vllm"
    PY_SPY = "py_spy"
    FLIGHT_RECORDER = "flight_recorder"


class CaptureState(StrEnum):
    """Where a capture stands on one node. All but the first two are final."""

    ARMED = "armed"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    LATE = "late"
    LOST = "lost"
    EMPTY = "empty"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether nothing more will be heard of the capture from that node."""
        return self not in {CaptureState.ARMED, CaptureState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What to trace on one node; see `telemetry.proto` for each field's meaning."""

    capture_id: str
    job: str
    tool: CaptureTool
    ranks: Sequence[int] = ()
    steps: int | None = None
    max_duration_s: float
    start_unix_ns: int | None = None
    profile: str = ""
    alert: str = ""
    max_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCancel:
    """Stop a capture, whatever it is doing."""

    capture_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFile:
    """An artefact on the node."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """Where a capture stands on one node."""

    capture_id: str
    state: CaptureState
    time_unix_ns: int
    reason: str = ""
    ranks: Sequence[int] = ()
    files: Sequence[CaptureFile] = ()
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    whole_steps: int | None = None
    """Steps that the traces of these ranks hold from begin to end, by what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of an agent; see `telemetry.proto`."""

    agent_id: str
    node: str
    perfd_version: str
    sent_unix_ns: int
    first_sequence: int
    capture_tools: Sequence[CaptureTool] = ()
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The aggregator's answer to `Hello`."""

    last_sequence: int
    sent_unix_ns: int
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Everything up to and including `sequence` is stored."""

    sequence: int


AgentMessage: TypeAlias = Hello | Batch | CaptureStatus
AggregatorMessage: TypeAlias = Welcome | Ack | CaptureRequest | CaptureCancel
