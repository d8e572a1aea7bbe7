"""What the byte files in golden/v1 say. Files there are never rewritten: new fields get new files.

`python tests/wire/golden_messages.py` writes the files that do not exist yet.
"""

from __future__ import annotations

from pathlib import Path

from perfd.model import (
    Ack,
    AgentMessage,
    AggregatorMessage,
    Batch,
    BatchInterval,
    CaptureCancel,
    CaptureFile,
    CaptureFilesRemoved,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    CollectiveTimes,
    CollectorHealth,
    Event,
    EventKind,
    Goodbye,
    GpuAllocation,
    GpuAllocations,
    GpuInfo,
    Hello,
    JobDescription,
    JobOrigin,
    JobOutcome,
    LogProgress,
    MemoryReport,
    MlaShape,
    ModelShape,
    ModelSource,
    MoeShape,
    ParallelLayout,
    PhaseTime,
    RankPlacement,
    Recompute,
    SampleTable,
    Scope,
    ServerInfo,
    ServerRole,
    StepPhases,
    Stored,
    TimingSource,
    TrainingStep,
    Welcome,
)
from perfd.wire import convert

DIRECTORY = Path(__file__).parent / "golden" / "v1"

RECORDS = (
    SampleTable(
        scope=Scope.GPU,
        times_unix_ns=(1_700_000_000_000_000_000, 1_700_000_001_000_000_000),
        entities=("0", "1/3"),
        columns={"power_w": (350.5, 410.0), "sm_active_ratio": (0.5, 0.875)},
    ),
    GpuInfo(
        index=1,
        name="NVIDIA H200",
        uuid="GPU-1",
        memory_bytes=150_754_820_096,
        max_sm_clock_hz=1.98e9,
        mig=True,
    ),
    RankPlacement(job="llm", rank=5, local_rank=1, world_size=8, gpu=1, pid=4242, pod_uid="pod-1"),
    JobDescription(
        job="llm",
        framework="megatron",
        framework_version="0.12.0",
        model=ModelShape(
            layers=32,
            hidden_size=4096,
            ffn_size=14336,
            attention_heads=32,
            kv_heads=8,
            head_size=128,
            sequence_length=8192,
            vocab_size=128_256,
            gated_mlp=True,
            attention_output_gate=True,
            moe=MoeShape(
                experts=64,
                top_k=6,
                expert_ffn_size=1408,
                shared_expert_ffn_size=2816,
                latent_size=512,
                layer_pattern=(0, 1, 1),
            ),
            mla=MlaShape(
                q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128
            ),
            mtp_layers=1,
        ),
        parallel=ParallelLayout(
            world_size=8, tp=2, pp=2, dp=2, cp=1, ep=2, vp=2, micro_batch_size=1, global_batch_size=64
        ),
        precision="bf16",
        recompute=Recompute.SELECTIVE,
        recompute_layers=4,
        train_steps=1000,
        log_interval_steps=10,
        parameters=8.03e9,
        logged_flops_convention="megatron-causal",
        arguments={"seed": "1234"},
    ),
    TrainingStep(
        job="llm",
        step=20,
        time_unix_ns=1_700_000_002_000_000_000,
        step_time_s=2.5,
        steps_covered=10,
        warmup=True,
        flops_per_s_per_gpu=4.5e14,
        tokens_per_s=209_715.2,
        samples_per_s=25.6,
        global_batch_size=64,
        consumed_samples=1280,
        consumed_tokens=10_485_760,
        learning_rate=3e-4,
        losses={"lm loss": 2.75},
        grad_norm=1.25,
        loss_scale=1.0,
        skipped_steps=1,
        nan_steps=2,
        energy_per_gpu_j=900.0,
        power_per_gpu_w=360.0,
        mfu_ratio=0.455,
        extras={"params norm": 10.5},
    ),
    StepPhases(
        job="llm",
        step=20,
        phases={"forward-compute": PhaseTime(min_s=0.5, max_s=0.75, by_rank={0: 0.5, 7: 0.75})},
    ),
    MemoryReport(
        job="llm",
        step=20,
        rank=5,
        allocated_bytes=1e10,
        max_allocated_bytes=2e10,
        reserved_bytes=3e10,
        max_reserved_bytes=4e10,
        device_used_bytes=5e10,
    ),
    Event(
        kind=EventKind.HARDWARE_ERROR,
        time_unix_ns=1_700_000_003_000_000_000,
        message="XID 79",
        job="llm",
        step=21,
        rank=5,
        gpu=1,
        code=79,
        duration_s=0.5,
        values={"count": 2.0},
    ),
    LogProgress(
        job="llm",
        stream="train.log",
        lines=100,
        read_bytes=12_345,
        unrecognized_lines=7,
        last_line_unix_ns=1_700_000_004_000_000_000,
    ),
    CollectorHealth(
        collector="nvml",
        time_unix_ns=1_700_000_005_000_000_000,
        duration_s=0.0025,
        success=False,
        message="lost",
    ),
)

SERVER = ServerInfo(
    server="127.0.0.1:30000",
    engine="sglang",
    version="0.5.9",
    model="Qwen/Qwen3-32B",
    parallel=ParallelLayout(tp=4, pp=1, dp=2),
    role=ServerRole.DECODE,
)

REMOVED = CaptureFilesRemoved(
    capture_id="c-1",
    paths=("captures/c-1/r4.nsys-rep",),
    reason="Older than 30 days.",
    time_unix_ns=1_700_000_008_000_000_000,
)

UPLOADED = CaptureFileUpload(
    capture_id="c-1",
    path="captures/c-1/r4.sqlite",
    url="s3://traces/perfd/unknown/unknown/llm/1/c-1/rank-4/node=node-1/r4.sqlite",
    size_bytes=4_096,
    sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    reason="The bucket is full.",
    time_unix_ns=1_700_000_009_000_000_000,
)

PLACEMENT = RankPlacement(
    job="llm", rank=5, local_rank=1, world_size=8, gpu=1, pid=4242, pod_uid="pod-1", pod_name="train-1"
)

STARTED = RankPlacement(job="llm", rank=0, pid=4243, started_unix_ns=1_700_000_000_120_000_000)
LIMITED = RankPlacement(job="llm", rank=0, pid=4243, time_limit_unix_s=1_700_003_600.0)
ORIGIN = JobOrigin(
    job="llm",
    cluster="alps",
    namespace="team-a",
    owner="uid:1001",
    nodes=("n1", "n2"),
    scheduler_restarts=1,
    launcher_restarts=2,
)
ALLOCATIONS = GpuAllocations(
    devices=(GpuAllocation(uuid="GPU-1", namespace="team-a", pod="train-0", container="main"),)
)
SLICE = GpuInfo(index=0, name="NVIDIA H200", uuid="MIG-1", mig=True, gpu_instance=3)
OWNED = JobOrigin(job="4711", user="ada", account="physics", partition="gpu", title="pretrain")
TASK = JobOrigin(job="18", array_job="17", array_task="3", het_group=1)
ENDED = Event(
    kind=EventKind.JOB_ENDED,
    time_unix_ns=1_700_000_010_000_000_000,
    message="SLURM ended the job.",
    job="llm",
    values={"exit_code": 1.0},
    outcome=JobOutcome.OUT_OF_MEMORY,
)

WITH_STARTS = CollectiveTimes(
    job="llm",
    rank=5,
    communicator="ab",
    communicator_rank=1,
    communicator_size=4,
    communicator_name="tp",
    operation="Send",
    peer=2,
    timing=TimingSource.GPU,
    start_unix_ns=1_700_000_009_000_000_000,
    end_unix_ns=1_700_000_010_000_000_000,
    count=4,
    total_bytes=8192.0,
    total_s=0.25,
    min_s=0.0625,
    max_s=0.125,
    algorithm="RING",
    protocol="SIMPLE",
    channels=8,
    sequences=(40, 42),
    durations_ns=(62_500_000, 125_000_000),
    sizes_bytes=(2048, 2048),
    gpu_starts_ns=(1_000_000_000, 1_500_000_000),
    source="inspector",
    start_increments_us=(-1_500, 500_000),
    queued_us=(80_000, -3),
)

EXACT = LogProgress(
    job="llm",
    stream="output",
    lines=5,
    read_bytes=99,
    unrecognized_lines=0,
    last_line_unix_ns=1_700_000_004_000_000_000,
    times_are_exact=True,
)
VERSIONED = JobDescription(job="llm", framework="", software={"NCCL": "2.21.5", "PyTorch": "2.4.0+cu124"})
CONFIGURED = JobDescription(
    job="llm",
    framework="",
    model_source=ModelSource.CONFIG,
    tokens_per_step=4_194_304.0,
    flops_per_step=2.0e17,
)
COUNTED = JobDescription(job="llm", framework="", hlo_flops_per_step=2.5e17)
TYPED = JobDescription(job="llm", framework="", hlo_flops_per_step=2.5e17, hlo_precision="bf16")
TRACKED = JobDescription(job="llm", framework="", wandb_run="https://wandb.ai/team/proj/runs/2v1jf4us")

MESSAGES: dict[str, AgentMessage | AggregatorMessage] = {
    "batch_wandb_run": Batch(sequence=49, sent_unix_ns=1_700_000_009_000_000_000, records=(TRACKED,)),
    "batch_hlo_precision": Batch(sequence=48, sent_unix_ns=1_700_000_009_000_000_000, records=(TYPED,)),
    "batch_hlo_flops": Batch(sequence=46, sent_unix_ns=1_700_000_009_000_000_000, records=(COUNTED,)),
    "hello": Hello(
        agent_id="6f1c1a3e",
        node="node-1",
        perfd_version="0.1.0",
        sent_unix_ns=1_700_000_000_000_000_000,
        first_sequence=41,
        capture_tools=(CaptureTool.NSYS, CaptureTool.PY_SPY),
    ),
    "batch": Batch(sequence=42, sent_unix_ns=1_700_000_006_000_000_000, records=RECORDS, dropped_records=9),
    "batch_server_info": Batch(sequence=43, sent_unix_ns=1_700_000_006_000_000_000, records=(SERVER,)),
    "batch_placement_in_named_pod": Batch(
        sequence=45, sent_unix_ns=1_700_000_009_000_000_000, records=(PLACEMENT,)
    ),
    "batch_capture_files_removed": Batch(
        sequence=44, sent_unix_ns=1_700_000_009_000_000_000, records=(REMOVED,)
    ),
    "batch_capture_file_upload": Batch(
        sequence=44, sent_unix_ns=1_700_000_009_000_000_000, records=(UPLOADED,)
    ),
    "batch_job_end": Batch(sequence=46, sent_unix_ns=1_700_000_010_000_000_000, records=(STARTED, ENDED)),
    "batch_time_limit": Batch(sequence=47, sent_unix_ns=1_700_000_010_000_000_000, records=(LIMITED,)),
    "batch_job_owner": Batch(sequence=48, sent_unix_ns=1_700_000_010_000_000_000, records=(OWNED,)),
    "batch_job_of_an_array": Batch(sequence=48, sent_unix_ns=1_700_000_010_000_000_000, records=(TASK,)),
    "batch_gpu_allocations": Batch(
        sequence=49, sent_unix_ns=1_700_000_010_000_000_000, records=(SLICE, ALLOCATIONS)
    ),
    "batch_job_origin": Batch(sequence=47, sent_unix_ns=1_700_000_010_000_000_000, records=(ORIGIN,)),
    "batch_operation_starts": Batch(
        sequence=47, sent_unix_ns=1_700_000_010_000_000_000, records=(WITH_STARTS,)
    ),
    "batch_model_config": Batch(sequence=48, sent_unix_ns=1_700_000_010_000_000_000, records=(CONFIGURED,)),
    "batch_software": Batch(sequence=49, sent_unix_ns=1_700_000_010_000_000_000, records=(VERSIONED,)),
    "batch_exact_log": Batch(sequence=50, sent_unix_ns=1_700_000_010_000_000_000, records=(EXACT,)),
    "hello_with_epochs": Hello(
        agent_id="6f1c1a3e",
        node="node-1",
        perfd_version="0.2.0",
        sent_unix_ns=1_700_000_000_000_000_000,
        first_sequence=41,
        spool_epoch="9c1d",
        previous_epoch="07af",
    ),
    "welcome_to_a_copy": Welcome(
        last_sequence=0, sent_unix_ns=1_700_000_000_000_000_000, renew_identity=True
    ),
    "goodbye": Goodbye(reason="stopped by SIGTERM", sent_unix_ns=1_700_000_011_000_000_000),
    "capture_status": CaptureStatus(
        capture_id="c-1",
        state=CaptureState.DONE,
        time_unix_ns=1_700_000_007_000_000_000,
        reason="5 steps",
        ranks=(4, 5),
        files=(CaptureFile(path="captures/c-1/r4.nsys-rep", size_bytes=123_456),),
        started_unix_ns=1_700_000_001_000_000_000,
        stopped_unix_ns=1_700_000_002_000_000_000,
    ),
    "capture_status_with_upload": CaptureStatus(
        capture_id="c-1",
        state=CaptureState.DONE,
        time_unix_ns=1_700_000_007_000_000_000,
        files=(CaptureFile(path="captures/c-1/r4.sqlite", size_bytes=4_096, upload=True),),
    ),
    "welcome": Welcome(last_sequence=41, sent_unix_ns=1_700_000_000_000_000_000),
    "welcome_received": Welcome(
        last_sequence=41, sent_unix_ns=1_700_000_000_000_000_000, received_sequence=43
    ),
    "hello_that_keeps": Hello(
        agent_id="6f1c1a3e",
        node="node-1",
        perfd_version="0.3.0",
        sent_unix_ns=1_700_000_000_000_000_000,
        first_sequence=41,
        keeps_until_stored=True,
    ),
    "welcome_that_says_stored": Welcome(
        last_sequence=41, sent_unix_ns=1_700_000_000_000_000_000, says_stored=True
    ),
    "stored": Stored(subject="perfd.from.default.3/6.node-1", sequences=(41, 42, 44)),
    "batch_interval": BatchInterval(quiet_s=2.0),
    "ack": Ack(sequence=42),
    "ack_received": Ack(sequence=42, received_sequence=44),
    "capture_request": CaptureRequest(
        capture_id="c-1",
        job="llm",
        tool=CaptureTool.NSYS,
        ranks=(4, 5),
        steps=5,
        max_duration_s=30.0,
        start_unix_ns=1_700_000_001_000_000_000,
        profile="default",
        alert="PerfdStepTimeRegression",
        max_bytes=1 << 30,
    ),
    "capture_request_with_folder": CaptureRequest(
        capture_id="c-1",
        job="llm",
        tool=CaptureTool.NSYS,
        max_duration_s=30.0,
        object_folder="unknown/unknown/llm/1",
    ),
    "capture_request_with_step_time": CaptureRequest(
        capture_id="c-1",
        job="llm",
        tool=CaptureTool.KINETO,
        steps=5,
        max_duration_s=30.0,
        step_time_s=0.25,
    ),
    "capture_cancel": CaptureCancel(capture_id="c-1", reason="the job ended"),
}


def write_missing() -> None:
    """Add the byte files of messages that have none."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, message in MESSAGES.items():
        path = DIRECTORY / f"{name}.bin"
        if not path.exists():
            path.write_bytes(convert.encode_message(message))


if __name__ == "__main__":
    write_missing()
