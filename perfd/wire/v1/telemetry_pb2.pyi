from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_GPU: _ClassVar[Scope]
    SCOPE_NODE: _ClassVar[Scope]
    SCOPE_NIC: _ClassVar[Scope]
    SCOPE_DISK: _ClassVar[Scope]
    SCOPE_RANK: _ClassVar[Scope]
    SCOPE_SERVER: _ClassVar[Scope]

class TimingSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIMING_SOURCE_UNSPECIFIED: _ClassVar[TimingSource]
    TIMING_SOURCE_GPU: _ClassVar[TimingSource]
    TIMING_SOURCE_PROXY: _ClassVar[TimingSource]

class CaptureTool(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPTURE_TOOL_UNSPECIFIED: _ClassVar[CaptureTool]
    CAPTURE_TOOL_NSYS: _ClassVar[CaptureTool]
    CAPTURE_TOOL_KINETO: _ClassVar[CaptureTool]
    CAPTURE_TOOL_SGLANG: _ClassVar[CaptureTool]
    CAPTURE_TOOL_VLLM: _ClassVar[CaptureTool]
    CAPTURE_TOOL_PY_SPY: _ClassVar[CaptureTool]
    CAPTURE_TOOL_FLIGHT_RECORDER: _ClassVar[CaptureTool]
    CAPTURE_TOOL_JAX: _ClassVar[CaptureTool]

class CaptureState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPTURE_STATE_UNSPECIFIED: _ClassVar[CaptureState]
    CAPTURE_STATE_ARMED: _ClassVar[CaptureState]
    CAPTURE_STATE_RUNNING: _ClassVar[CaptureState]
    CAPTURE_STATE_DONE: _ClassVar[CaptureState]
    CAPTURE_STATE_REFUSED: _ClassVar[CaptureState]
    CAPTURE_STATE_LATE: _ClassVar[CaptureState]
    CAPTURE_STATE_LOST: _ClassVar[CaptureState]
    CAPTURE_STATE_EMPTY: _ClassVar[CaptureState]
    CAPTURE_STATE_FAILED: _ClassVar[CaptureState]
SCOPE_UNSPECIFIED: Scope
SCOPE_GPU: Scope
SCOPE_NODE: Scope
SCOPE_NIC: Scope
SCOPE_DISK: Scope
SCOPE_RANK: Scope
SCOPE_SERVER: Scope
TIMING_SOURCE_UNSPECIFIED: TimingSource
TIMING_SOURCE_GPU: TimingSource
TIMING_SOURCE_PROXY: TimingSource
CAPTURE_TOOL_UNSPECIFIED: CaptureTool
CAPTURE_TOOL_NSYS: CaptureTool
CAPTURE_TOOL_KINETO: CaptureTool
CAPTURE_TOOL_SGLANG: CaptureTool
CAPTURE_TOOL_VLLM: CaptureTool
CAPTURE_TOOL_PY_SPY: CaptureTool
CAPTURE_TOOL_FLIGHT_RECORDER: CaptureTool
CAPTURE_TOOL_JAX: CaptureTool
CAPTURE_STATE_UNSPECIFIED: CaptureState
CAPTURE_STATE_ARMED: CaptureState
CAPTURE_STATE_RUNNING: CaptureState
CAPTURE_STATE_DONE: CaptureState
CAPTURE_STATE_REFUSED: CaptureState
CAPTURE_STATE_LATE: CaptureState
CAPTURE_STATE_LOST: CaptureState
CAPTURE_STATE_EMPTY: CaptureState
CAPTURE_STATE_FAILED: CaptureState

class AgentMessage(_message.Message):
    __slots__ = ("hello", "batch", "capture_status", "goodbye", "acknowledge_each", "session", "sender", "namespace", "again")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_STATUS_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_EACH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    batch: Batch
    capture_status: CaptureStatus
    goodbye: Goodbye
    acknowledge_each: AcknowledgeEach
    session: str
    sender: Hello
    namespace: str
    again: bool
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., capture_status: _Optional[_Union[CaptureStatus, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., acknowledge_each: _Optional[_Union[AcknowledgeEach, _Mapping]] = ..., session: _Optional[str] = ..., sender: _Optional[_Union[Hello, _Mapping]] = ..., namespace: _Optional[str] = ..., again: bool = ...) -> None: ...

class AggregatorMessage(_message.Message):
    __slots__ = ("welcome", "ack", "capture_request", "capture_cancel", "new_finding", "stored", "batch_interval")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_CANCEL_FIELD_NUMBER: _ClassVar[int]
    NEW_FINDING_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    BATCH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ack: Ack
    capture_request: CaptureRequest
    capture_cancel: CaptureCancel
    new_finding: NewFinding
    stored: Stored
    batch_interval: BatchInterval
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., capture_request: _Optional[_Union[CaptureRequest, _Mapping]] = ..., capture_cancel: _Optional[_Union[CaptureCancel, _Mapping]] = ..., new_finding: _Optional[_Union[NewFinding, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., batch_interval: _Optional[_Union[BatchInterval, _Mapping]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("subject", "sequences")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    subject: str
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, subject: _Optional[str] = ..., sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class NewFinding(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class BatchInterval(_message.Message):
    __slots__ = ("quiet_s",)
    QUIET_S_FIELD_NUMBER: _ClassVar[int]
    quiet_s: float
    def __init__(self, quiet_s: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("revision", "agent_id", "node", "perfd_version", "sent_unix_ns", "first_sequence", "capture_tools", "spool_epoch", "previous_epoch", "acknowledge_every", "keeps_until_stored")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PERFD_VERSION_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_TOOLS_FIELD_NUMBER: _ClassVar[int]
    SPOOL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_EVERY_FIELD_NUMBER: _ClassVar[int]
    KEEPS_UNTIL_STORED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    agent_id: str
    node: str
    perfd_version: str
    sent_unix_ns: int
    first_sequence: int
    capture_tools: _containers.RepeatedScalarFieldContainer[str]
    spool_epoch: str
    previous_epoch: str
    acknowledge_every: int
    keeps_until_stored: bool
    def __init__(self, revision: _Optional[int] = ..., agent_id: _Optional[str] = ..., node: _Optional[str] = ..., perfd_version: _Optional[str] = ..., sent_unix_ns: _Optional[int] = ..., first_sequence: _Optional[int] = ..., capture_tools: _Optional[_Iterable[str]] = ..., spool_epoch: _Optional[str] = ..., previous_epoch: _Optional[str] = ..., acknowledge_every: _Optional[int] = ..., keeps_until_stored: bool = ...) -> None: ...

class AcknowledgeEach(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "sent_unix_ns")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    sent_unix_ns: int
    def __init__(self, reason: _Optional[str] = ..., sent_unix_ns: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("revision", "last_sequence", "sent_unix_ns", "renew_identity", "received_sequence", "known_sequence", "says_stored")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    RENEW_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SAYS_STORED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    last_sequence: int
    sent_unix_ns: int
    renew_identity: bool
    received_sequence: int
    known_sequence: int
    says_stored: bool
    def __init__(self, revision: _Optional[int] = ..., last_sequence: _Optional[int] = ..., sent_unix_ns: _Optional[int] = ..., renew_identity: bool = ..., received_sequence: _Optional[int] = ..., known_sequence: _Optional[int] = ..., says_stored: bool = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("sequence", "received_sequence")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    received_sequence: int
    def __init__(self, sequence: _Optional[int] = ..., received_sequence: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("sequence", "sent_unix_ns", "samples", "records", "dropped_records")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    sent_unix_ns: int
    samples: _containers.RepeatedScalarFieldContainer[bytes]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    dropped_records: int
    def __init__(self, sequence: _Optional[int] = ..., sent_unix_ns: _Optional[int] = ..., samples: _Optional[_Iterable[bytes]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., dropped_records: _Optional[int] = ...) -> None: ...

class SampleTable(_message.Message):
    __slots__ = ("scope", "times_unix_ns", "entities", "entity_of_row", "columns")
    class Column(_message.Message):
        __slots__ = ("metric", "values")
        METRIC_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        metric: str
        values: bytes
        def __init__(self, metric: _Optional[str] = ..., values: _Optional[bytes] = ...) -> None: ...
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TIMES_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    ENTITY_OF_ROW_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    times_unix_ns: bytes
    entities: _containers.RepeatedScalarFieldContainer[str]
    entity_of_row: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedCompositeFieldContainer[SampleTable.Column]
    def __init__(self, scope: _Optional[_Union[Scope, str]] = ..., times_unix_ns: _Optional[bytes] = ..., entities: _Optional[_Iterable[str]] = ..., entity_of_row: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[_Union[SampleTable.Column, _Mapping]]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("gpu_info", "rank_placement", "job_description", "training_step", "step_phases", "memory_report", "event", "log_progress", "collector_health", "collective_times", "collective_progress", "server_info", "capture_files_removed", "job_origin", "gpu_allocations", "capture_file_upload")
    GPU_INFO_FIELD_NUMBER: _ClassVar[int]
    RANK_PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    JOB_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_PHASES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_REPORT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LOG_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_HEALTH_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_TIMES_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SERVER_INFO_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FILES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    JOB_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    GPU_ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FILE_UPLOAD_FIELD_NUMBER: _ClassVar[int]
    gpu_info: GpuInfo
    rank_placement: RankPlacement
    job_description: JobDescription
    training_step: TrainingStep
    step_phases: StepPhases
    memory_report: MemoryReport
    event: Event
    log_progress: LogProgress
    collector_health: CollectorHealth
    collective_times: CollectiveTimes
    collective_progress: CollectiveProgress
    server_info: ServerInfo
    capture_files_removed: CaptureFilesRemoved
    job_origin: JobOrigin
    gpu_allocations: GpuAllocations
    capture_file_upload: CaptureFileUpload
    def __init__(self, gpu_info: _Optional[_Union[GpuInfo, _Mapping]] = ..., rank_placement: _Optional[_Union[RankPlacement, _Mapping]] = ..., job_description: _Optional[_Union[JobDescription, _Mapping]] = ..., training_step: _Optional[_Union[TrainingStep, _Mapping]] = ..., step_phases: _Optional[_Union[StepPhases, _Mapping]] = ..., memory_report: _Optional[_Union[MemoryReport, _Mapping]] = ..., event: _Optional[_Union[Event, _Mapping]] = ..., log_progress: _Optional[_Union[LogProgress, _Mapping]] = ..., collector_health: _Optional[_Union[CollectorHealth, _Mapping]] = ..., collective_times: _Optional[_Union[CollectiveTimes, _Mapping]] = ..., collective_progress: _Optional[_Union[CollectiveProgress, _Mapping]] = ..., server_info: _Optional[_Union[ServerInfo, _Mapping]] = ..., capture_files_removed: _Optional[_Union[CaptureFilesRemoved, _Mapping]] = ..., job_origin: _Optional[_Union[JobOrigin, _Mapping]] = ..., gpu_allocations: _Optional[_Union[GpuAllocations, _Mapping]] = ..., capture_file_upload: _Optional[_Union[CaptureFileUpload, _Mapping]] = ...) -> None: ...

class GpuInfo(_message.Message):
    __slots__ = ("index", "name", "uuid", "memory_bytes", "max_sm_clock_hz", "mig", "gpu_instance")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SM_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    MIG_FIELD_NUMBER: _ClassVar[int]
    GPU_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    uuid: str
    memory_bytes: int
    max_sm_clock_hz: float
    mig: bool
    gpu_instance: int
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., max_sm_clock_hz: _Optional[float] = ..., mig: bool = ..., gpu_instance: _Optional[int] = ...) -> None: ...

class GpuAllocations(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[GpuAllocation]
    def __init__(self, devices: _Optional[_Iterable[_Union[GpuAllocation, _Mapping]]] = ...) -> None: ...

class GpuAllocation(_message.Message):
    __slots__ = ("uuid", "namespace", "pod", "container")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    namespace: str
    pod: str
    container: str
    def __init__(self, uuid: _Optional[str] = ..., namespace: _Optional[str] = ..., pod: _Optional[str] = ..., container: _Optional[str] = ...) -> None: ...

class RankPlacement(_message.Message):
    __slots__ = ("job", "rank", "local_rank", "world_size", "gpu", "pid", "pod_uid", "pod_name", "started_unix_ns", "time_limit_unix_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    local_rank: int
    world_size: int
    gpu: int
    pid: int
    pod_uid: str
    pod_name: str
    started_unix_ns: int
    time_limit_unix_s: float
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., gpu: _Optional[int] = ..., pid: _Optional[int] = ..., pod_uid: _Optional[str] = ..., pod_name: _Optional[str] = ..., started_unix_ns: _Optional[int] = ..., time_limit_unix_s: _Optional[float] = ...) -> None: ...

class ParallelLayout(_message.Message):
    __slots__ = ("world_size", "tp", "pp", "dp", "cp", "ep", "vp", "micro_batch_size", "global_batch_size")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    CP_FIELD_NUMBER: _ClassVar[int]
    EP_FIELD_NUMBER: _ClassVar[int]
    VP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    vp: int
    micro_batch_size: int
    global_batch_size: int
    def __init__(self, world_size: _Optional[int] = ..., tp: _Optional[int] = ..., pp: _Optional[int] = ..., dp: _Optional[int] = ..., cp: _Optional[int] = ..., ep: _Optional[int] = ..., vp: _Optional[int] = ..., micro_batch_size: _Optional[int] = ..., global_batch_size: _Optional[int] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("server", "engine", "version", "model", "parallel", "role")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    server: str
    engine: str
    version: str
    model: str
    parallel: ParallelLayout
    role: str
    def __init__(self, server: _Optional[str] = ..., engine: _Optional[str] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., parallel: _Optional[_Union[ParallelLayout, _Mapping]] = ..., role: _Optional[str] = ...) -> None: ...

class MlaShape(_message.Message):
    __slots__ = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    Q_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    KV_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    QK_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    QK_POS_EMB_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    V_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    def __init__(self, q_lora_rank: _Optional[int] = ..., kv_lora_rank: _Optional[int] = ..., qk_head_dim: _Optional[int] = ..., qk_pos_emb_head_dim: _Optional[int] = ..., v_head_dim: _Optional[int] = ...) -> None: ...

class MoeShape(_message.Message):
    __slots__ = ("experts", "top_k", "expert_ffn_size", "shared_expert_ffn_size", "latent_size", "layer_pattern")
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FFN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARED_EXPERT_FFN_SIZE_FIELD_NUMBER: _ClassVar[int]
    LATENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_PATTERN_FIELD_NUMBER: _ClassVar[int]
    experts: int
    top_k: int
    expert_ffn_size: int
    shared_expert_ffn_size: int
    latent_size: int
    layer_pattern: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, experts: _Optional[int] = ..., top_k: _Optional[int] = ..., expert_ffn_size: _Optional[int] = ..., shared_expert_ffn_size: _Optional[int] = ..., latent_size: _Optional[int] = ..., layer_pattern: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelShape(_message.Message):
    __slots__ = ("layers", "hidden_size", "ffn_size", "attention_heads", "kv_heads", "head_size", "sequence_length", "vocab_size", "gated_mlp", "attention_output_gate", "moe", "mla", "mtp_layers")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    FFN_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    GATED_MLP_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_OUTPUT_GATE_FIELD_NUMBER: _ClassVar[int]
    MOE_FIELD_NUMBER: _ClassVar[int]
    MLA_FIELD_NUMBER: _ClassVar[int]
    MTP_LAYERS_FIELD_NUMBER: _ClassVar[int]
    layers: int
    hidden_size: int
    ffn_size: int
    attention_heads: int
    kv_heads: int
    head_size: int
    sequence_length: int
    vocab_size: int
    gated_mlp: bool
    attention_output_gate: bool
    moe: MoeShape
    mla: MlaShape
    mtp_layers: int
    def __init__(self, layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., ffn_size: _Optional[int] = ..., attention_heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., sequence_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., gated_mlp: bool = ..., attention_output_gate: bool = ..., moe: _Optional[_Union[MoeShape, _Mapping]] = ..., mla: _Optional[_Union[MlaShape, _Mapping]] = ..., mtp_layers: _Optional[int] = ...) -> None: ...

class JobDescription(_message.Message):
    __slots__ = ("job", "framework", "framework_version", "model", "parallel", "precision", "recompute", "recompute_layers", "train_steps", "log_interval_steps", "parameters", "logged_flops_convention", "arguments", "model_source", "tokens_per_step", "flops_per_step", "hlo_flops_per_step", "software", "hlo_precision", "wandb_run")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SoftwareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOG_INTERVAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FLOPS_CONVENTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    HLO_FLOPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    HLO_PRECISION_FIELD_NUMBER: _ClassVar[int]
    WANDB_RUN_FIELD_NUMBER: _ClassVar[int]
    job: str
    framework: str
    framework_version: str
    model: ModelShape
    parallel: ParallelLayout
    precision: str
    recompute: str
    recompute_layers: int
    train_steps: int
    log_interval_steps: int
    parameters: float
    logged_flops_convention: str
    arguments: _containers.ScalarMap[str, str]
    model_source: str
    tokens_per_step: float
    flops_per_step: float
    hlo_flops_per_step: float
    software: _containers.ScalarMap[str, str]
    hlo_precision: str
    wandb_run: str
    def __init__(self, job: _Optional[str] = ..., framework: _Optional[str] = ..., framework_version: _Optional[str] = ..., model: _Optional[_Union[ModelShape, _Mapping]] = ..., parallel: _Optional[_Union[ParallelLayout, _Mapping]] = ..., precision: _Optional[str] = ..., recompute: _Optional[str] = ..., recompute_layers: _Optional[int] = ..., train_steps: _Optional[int] = ..., log_interval_steps: _Optional[int] = ..., parameters: _Optional[float] = ..., logged_flops_convention: _Optional[str] = ..., arguments: _Optional[_Mapping[str, str]] = ..., model_source: _Optional[str] = ..., tokens_per_step: _Optional[float] = ..., flops_per_step: _Optional[float] = ..., hlo_flops_per_step: _Optional[float] = ..., software: _Optional[_Mapping[str, str]] = ..., hlo_precision: _Optional[str] = ..., wandb_run: _Optional[str] = ...) -> None: ...

class JobOrigin(_message.Message):
    __slots__ = ("job", "cluster", "namespace", "owner", "nodes", "scheduler_restarts", "launcher_restarts", "user", "account", "partition", "title", "array_job", "array_task", "het_group")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_JOB_FIELD_NUMBER: _ClassVar[int]
    ARRAY_TASK_FIELD_NUMBER: _ClassVar[int]
    HET_GROUP_FIELD_NUMBER: _ClassVar[int]
    job: str
    cluster: str
    namespace: str
    owner: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    scheduler_restarts: int
    launcher_restarts: int
    user: str
    account: str
    partition: str
    title: str
    array_job: str
    array_task: str
    het_group: int
    def __init__(self, job: _Optional[str] = ..., cluster: _Optional[str] = ..., namespace: _Optional[str] = ..., owner: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., scheduler_restarts: _Optional[int] = ..., launcher_restarts: _Optional[int] = ..., user: _Optional[str] = ..., account: _Optional[str] = ..., partition: _Optional[str] = ..., title: _Optional[str] = ..., array_job: _Optional[str] = ..., array_task: _Optional[str] = ..., het_group: _Optional[int] = ...) -> None: ...

class TrainingStep(_message.Message):
    __slots__ = ("job", "step", "time_unix_ns", "step_time_s", "steps_covered", "warmup", "flops_per_s_per_gpu", "tokens_per_s", "samples_per_s", "global_batch_size", "consumed_samples", "consumed_tokens", "learning_rate", "losses", "grad_norm", "loss_scale", "skipped_steps", "nan_steps", "energy_per_gpu_j", "power_per_gpu_w", "mfu_ratio", "extras")
    class LossesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ExtrasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_COVERED_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_S_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    NAN_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_PER_GPU_J_FIELD_NUMBER: _ClassVar[int]
    POWER_PER_GPU_W_FIELD_NUMBER: _ClassVar[int]
    MFU_RATIO_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    time_unix_ns: int
    step_time_s: float
    steps_covered: int
    warmup: bool
    flops_per_s_per_gpu: float
    tokens_per_s: float
    samples_per_s: float
    global_batch_size: int
    consumed_samples: int
    consumed_tokens: int
    learning_rate: float
    losses: _containers.ScalarMap[str, float]
    grad_norm: float
    loss_scale: float
    skipped_steps: int
    nan_steps: int
    energy_per_gpu_j: float
    power_per_gpu_w: float
    mfu_ratio: float
    extras: _containers.ScalarMap[str, float]
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., time_unix_ns: _Optional[int] = ..., step_time_s: _Optional[float] = ..., steps_covered: _Optional[int] = ..., warmup: bool = ..., flops_per_s_per_gpu: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., samples_per_s: _Optional[float] = ..., global_batch_size: _Optional[int] = ..., consumed_samples: _Optional[int] = ..., consumed_tokens: _Optional[int] = ..., learning_rate: _Optional[float] = ..., losses: _Optional[_Mapping[str, float]] = ..., grad_norm: _Optional[float] = ..., loss_scale: _Optional[float] = ..., skipped_steps: _Optional[int] = ..., nan_steps: _Optional[int] = ..., energy_per_gpu_j: _Optional[float] = ..., power_per_gpu_w: _Optional[float] = ..., mfu_ratio: _Optional[float] = ..., extras: _Optional[_Mapping[str, float]] = ...) -> None: ...

class PhaseTime(_message.Message):
    __slots__ = ("min_s", "max_s", "by_rank")
    class ByRankEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MIN_S_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    BY_RANK_FIELD_NUMBER: _ClassVar[int]
    min_s: float
    max_s: float
    by_rank: _containers.ScalarMap[int, float]
    def __init__(self, min_s: _Optional[float] = ..., max_s: _Optional[float] = ..., by_rank: _Optional[_Mapping[int, float]] = ...) -> None: ...

class StepPhases(_message.Message):
    __slots__ = ("job", "step", "phases")
    class PhasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PhaseTime
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PhaseTime, _Mapping]] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    phases: _containers.MessageMap[str, PhaseTime]
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., phases: _Optional[_Mapping[str, PhaseTime]] = ...) -> None: ...

class MemoryReport(_message.Message):
    __slots__ = ("job", "step", "rank", "allocated_bytes", "max_allocated_bytes", "reserved_bytes", "max_reserved_bytes", "device_used_bytes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    rank: int
    allocated_bytes: float
    max_allocated_bytes: float
    reserved_bytes: float
    max_reserved_bytes: float
    device_used_bytes: float
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., allocated_bytes: _Optional[float] = ..., max_allocated_bytes: _Optional[float] = ..., reserved_bytes: _Optional[float] = ..., max_reserved_bytes: _Optional[float] = ..., device_used_bytes: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("kind", "time_unix_ns", "message", "job", "step", "rank", "gpu", "code", "duration_s", "values", "outcome")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    time_unix_ns: int
    message: str
    job: str
    step: int
    rank: int
    gpu: int
    code: int
    duration_s: float
    values: _containers.ScalarMap[str, float]
    outcome: str
    def __init__(self, kind: _Optional[str] = ..., time_unix_ns: _Optional[int] = ..., message: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., gpu: _Optional[int] = ..., code: _Optional[int] = ..., duration_s: _Optional[float] = ..., values: _Optional[_Mapping[str, float]] = ..., outcome: _Optional[str] = ...) -> None: ...

class LogProgress(_message.Message):
    __slots__ = ("job", "stream", "lines", "read_bytes", "unrecognized_lines", "last_line_unix_ns", "times_are_exact")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNRECOGNIZED_LINES_FIELD_NUMBER: _ClassVar[int]
    LAST_LINE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TIMES_ARE_EXACT_FIELD_NUMBER: _ClassVar[int]
    job: str
    stream: str
    lines: int
    read_bytes: int
    unrecognized_lines: int
    last_line_unix_ns: int
    times_are_exact: bool
    def __init__(self, job: _Optional[str] = ..., stream: _Optional[str] = ..., lines: _Optional[int] = ..., read_bytes: _Optional[int] = ..., unrecognized_lines: _Optional[int] = ..., last_line_unix_ns: _Optional[int] = ..., times_are_exact: bool = ...) -> None: ...

class CollectorHealth(_message.Message):
    __slots__ = ("collector", "time_unix_ns", "duration_s", "success", "message")
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    collector: str
    time_unix_ns: int
    duration_s: float
    success: bool
    message: str
    def __init__(self, collector: _Optional[str] = ..., time_unix_ns: _Optional[int] = ..., duration_s: _Optional[float] = ..., success: bool = ..., message: _Optional[str] = ...) -> None: ...

class CollectiveTimes(_message.Message):
    __slots__ = ("job", "rank", "communicator", "communicator_rank", "communicator_size", "communicator_name", "operation", "peer", "timing", "start_unix_ns", "end_unix_ns", "count", "total_bytes", "total_s", "min_s", "max_s", "algorithm", "protocol", "sequences", "durations_ns", "sizes_bytes", "source", "gpu_starts_ns", "channels", "start_increments_us", "queued_us")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_RANK_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    END_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    MIN_S_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DURATIONS_NS_FIELD_NUMBER: _ClassVar[int]
    SIZES_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GPU_STARTS_NS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    START_INCREMENTS_US_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    communicator: str
    communicator_rank: int
    communicator_size: int
    communicator_name: str
    operation: str
    peer: int
    timing: TimingSource
    start_unix_ns: int
    end_unix_ns: int
    count: int
    total_bytes: float
    total_s: float
    min_s: float
    max_s: float
    algorithm: str
    protocol: str
    sequences: _containers.RepeatedScalarFieldContainer[int]
    durations_ns: _containers.RepeatedScalarFieldContainer[int]
    sizes_bytes: _containers.RepeatedScalarFieldContainer[int]
    source: str
    gpu_starts_ns: _containers.RepeatedScalarFieldContainer[int]
    channels: int
    start_increments_us: _containers.RepeatedScalarFieldContainer[int]
    queued_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., communicator: _Optional[str] = ..., communicator_rank: _Optional[int] = ..., communicator_size: _Optional[int] = ..., communicator_name: _Optional[str] = ..., operation: _Optional[str] = ..., peer: _Optional[int] = ..., timing: _Optional[_Union[TimingSource, str]] = ..., start_unix_ns: _Optional[int] = ..., end_unix_ns: _Optional[int] = ..., count: _Optional[int] = ..., total_bytes: _Optional[float] = ..., total_s: _Optional[float] = ..., min_s: _Optional[float] = ..., max_s: _Optional[float] = ..., algorithm: _Optional[str] = ..., protocol: _Optional[str] = ..., sequences: _Optional[_Iterable[int]] = ..., durations_ns: _Optional[_Iterable[int]] = ..., sizes_bytes: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ..., gpu_starts_ns: _Optional[_Iterable[int]] = ..., channels: _Optional[int] = ..., start_increments_us: _Optional[_Iterable[int]] = ..., queued_us: _Optional[_Iterable[int]] = ...) -> None: ...

class CollectiveProgress(_message.Message):
    __slots__ = ("job", "rank", "communicator", "communicator_name", "members", "operation", "enqueued", "started", "completed", "time_unix_ns", "source")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    communicator: str
    communicator_name: str
    members: _containers.RepeatedScalarFieldContainer[int]
    operation: str
    enqueued: int
    started: int
    completed: int
    time_unix_ns: int
    source: str
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., communicator: _Optional[str] = ..., communicator_name: _Optional[str] = ..., members: _Optional[_Iterable[int]] = ..., operation: _Optional[str] = ..., enqueued: _Optional[int] = ..., started: _Optional[int] = ..., completed: _Optional[int] = ..., time_unix_ns: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...

class CaptureRequest(_message.Message):
    __slots__ = ("capture_id", "job", "tool", "ranks", "steps", "max_duration_s", "start_unix_ns", "profile", "alert", "max_bytes", "object_folder", "step_time_s")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    job: str
    tool: CaptureTool
    ranks: _containers.RepeatedScalarFieldContainer[int]
    steps: int
    max_duration_s: float
    start_unix_ns: int
    profile: str
    alert: str
    max_bytes: int
    object_folder: str
    step_time_s: float
    def __init__(self, capture_id: _Optional[str] = ..., job: _Optional[str] = ..., tool: _Optional[_Union[CaptureTool, str]] = ..., ranks: _Optional[_Iterable[int]] = ..., steps: _Optional[int] = ..., max_duration_s: _Optional[float] = ..., start_unix_ns: _Optional[int] = ..., profile: _Optional[str] = ..., alert: _Optional[str] = ..., max_bytes: _Optional[int] = ..., object_folder: _Optional[str] = ..., step_time_s: _Optional[float] = ...) -> None: ...

class CaptureCancel(_message.Message):
    __slots__ = ("capture_id", "reason")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    reason: str
    def __init__(self, capture_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CaptureStatus(_message.Message):
    __slots__ = ("capture_id", "state", "reason", "ranks", "files", "time_unix_ns", "started_unix_ns", "stopped_unix_ns", "whole_steps")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    state: CaptureState
    reason: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    files: _containers.RepeatedCompositeFieldContainer[CaptureFile]
    time_unix_ns: int
    started_unix_ns: int
    stopped_unix_ns: int
    whole_steps: int
    def __init__(self, capture_id: _Optional[str] = ..., state: _Optional[_Union[CaptureState, str]] = ..., reason: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., files: _Optional[_Iterable[_Union[CaptureFile, _Mapping]]] = ..., time_unix_ns: _Optional[int] = ..., started_unix_ns: _Optional[int] = ..., stopped_unix_ns: _Optional[int] = ..., whole_steps: _Optional[int] = ...) -> None: ...

class CaptureFilesRemoved(_message.Message):
    __slots__ = ("capture_id", "paths", "reason", "time_unix_ns")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    time_unix_ns: int
    def __init__(self, capture_id: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., time_unix_ns: _Optional[int] = ...) -> None: ...

class CaptureFile(_message.Message):
    __slots__ = ("path", "size_bytes", "upload")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    upload: bool
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., upload: bool = ...) -> None: ...

class CaptureFileUpload(_message.Message):
    __slots__ = ("capture_id", "path", "url", "size_bytes", "sha256", "reason", "time_unix_ns")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    path: str
    url: str
    size_bytes: int
    sha256: str
    reason: str
    time_unix_ns: int
    def __init__(self, capture_id: _Optional[str] = ..., path: _Optional[str] = ..., url: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., reason: _Optional[str] = ..., time_unix_ns: _Optional[int] = ...) -> None: ...
