"""Which jobs `phase_runs.py` runs, and which faults are switched on in them; `quiet_jobs.py` has more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.gpu.phases import Fault, Phase, phases, slow_data

_SLOW_STEPS, _STEPS_AFTER = 50, 26
MEGATRON_MODEL = (
    "--hidden-size", "2048", "--num-attention-heads", "16", "--seq-length", "2048",
    "--max-position-embeddings", "2048", "--micro-batch-size", "2", "--lr", "1e-4", "--min-lr", "1e-5",
    "--lr-decay-style", "cosine", "--split", "100,0,0", "--eval-iters", "0", "--eval-interval", "100000",
    "--bf16", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "32000",
    "--transformer-impl", "local", "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion",
    "--no-persist-layer-norm", "--log-interval", "1", "--log-throughput",
)  # fmt: skip
_RECOMPUTED = (
    "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1",
)  # fmt: skip
_SAVING = (
    "--save", "/tmp/perfd-benchmark-saving2", "--save-interval", "25",
    "--eval-interval", "20", "--eval-iters", "8", "--split", "90,10,0",
)  # fmt: skip
EXPERTS = (
    "--num-experts", "8", "--expert-model-parallel-size", "4", "--moe-router-topk", "2",
    "--moe-token-dispatcher-type", "alltoall", "--moe-aux-loss-coeff", "0.01", "--swiglu",
    "--disable-bias-linear",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: what it trains, and what goes wrong in it."""

    faults: tuple[Fault, ...] = ()
    megatron: tuple[str, ...] = ()
    """Arguments of pretrain_gpt.py; empty for a plain loop."""
    loop: tuple[str, ...] = ()
    """Arguments of `script`."""
    script: str = "loop_job.py"
    own_launcher: bool = False
    """The script starts its other ranks, if it has any, in place of torchrun."""
    gpus: int = 4
    healthy_steps: int = 16
    """Steps before the first fault."""
    steps_between: int = 8
    """Healthy steps between two faults."""
    launcher: tuple[str, ...] = ()
    """More arguments for torchrun."""
    perfd: tuple[str, ...] = ()
    """More options of `perfd run`."""
    slow_data: tuple[str, float] | None = None
    """In place of faults: `storage` or `decoding`, and its seconds of each sample from the first step on."""

    @property
    def plan(self) -> list[Phase]:
        """Its phases."""
        if self.slow_data is None:
            return phases(self.faults, warmup_steps=self.healthy_steps, healthy_steps=self.steps_between)
        return slow_data(*self.slow_data, steps=_SLOW_STEPS, healthy_steps=_STEPS_AFTER)


def megatron_of(layers: int, batch: int, *layout: str) -> tuple[str, ...]:
    return ("--num-layers", str(layers), "--global-batch-size", str(batch), *layout)


def _varied(
    kind: str, *faults: Fault, more: tuple[str, ...] = (), launcher: tuple[str, ...] = (), steps: int = 90
) -> Job:
    return Job(
        gpus=2,
        script="varied_job.py",
        loop=("--kind", kind, "--micro-batch", "8", "--accumulate", "1", *more),
        launcher=launcher,
        healthy_steps=steps,
        faults=faults,
    )


def unusual(
    kind: str, *faults: Fault, more: tuple[str, ...] = (), spawn: int = 0, gpus: int = 2, steps: int = 30
) -> Job:
    return Job(
        gpus=gpus,
        script="unusual_job.py",
        own_launcher=bool(spawn) or gpus == 1,
        loop=(
            *("--kind", kind, "--micro-batch", "8", "--accumulate", "1", *more),
            *(("--spawn", str(spawn)) if spawn else ()),
        ),
        faults=faults,
        healthy_steps=steps,
        steps_between=20,
    )


_STEPS_ALONE = 60
_SMALL_BATCHES = ("--accumulate", "1", "--micro-batch", "8")


def _alone(script: str, *arguments: str, size: float = 1.0, steps: int = _STEPS_ALONE) -> Job:
    """On one GPU: its input comes late, then its host sleeps."""
    return Job(
        gpus=1,
        script=script,
        own_launcher=True,
        loop=arguments,
        faults=tuple(Fault(kind=kind, size=size, steps=steps) for kind in ("loader", "host")),
        healthy_steps=40,
        steps_between=steps,
    )


TENSOR_PARALLEL = "--tensor-model-parallel-size"
TP2, PP2 = (TENSOR_PARALLEL, "2"), ("--pipeline-model-parallel-size", "2")
_STALL_STEPS = 20
JOBS: Mapping[str, Job] = {
    # Tensor parallel jobs of this size are launch-bound: GPUs have time to spare, small work costs nothing.
    "tp2dp2": Job(
        megatron=megatron_of(12, 16, *TP2),
        faults=(
            Fault(kind="gpu", size=0.15, ranks=(3,)),
            Fault(kind="host", size=0.2, ranks=(1,)),
            Fault(kind="gpu", size=0.8, ranks=(2,)),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=_STALL_STEPS),
            Fault(kind="loader", size=0.3),
        ),
    ),
    "ep4": Job(
        megatron=megatron_of(8, 16, *EXPERTS),
        faults=(
            Fault(kind="gpu", size=0.4, ranks=(2,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="host", size=0.25, ranks=(1,)),
            Fault(kind="stall", size=0.6, ranks=(3,), steps=_STALL_STEPS),
        ),
    ),
    "tp2pp2": Job(
        megatron=megatron_of(12, 16, *TP2, *PP2),
        faults=(
            Fault(kind="gpu", size=0.12, ranks=(3,)),
            Fault(kind="gpu", size=0.8, ranks=(1,)),
            Fault(kind="stall", size=0.6, ranks=(2,), steps=_STALL_STEPS),
            Fault(kind="host", size=0.2, ranks=(2,)),
            Fault(kind="loader", size=0.3),
        ),
    ),
    "dp4": Job(
        megatron=megatron_of(12, 32),
        faults=(
            Fault(kind="gpu", size=0.2, ranks=(1,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="gpu", size=0.08, ranks=(2,)),
            Fault(kind="host", size=0.25, ranks=(3,)),
            Fault(kind="stall", size=0.6, ranks=(2,), steps=_STALL_STEPS),
        ),
    ),
    "fsdp2": Job(
        loop=("--wrap", "fsdp2"),
        faults=(
            Fault(kind="host", size=0.3, ranks=(1,)),
            Fault(kind="gpu", size=0.25, ranks=(2,)),
            Fault(kind="stall", size=0.6, ranks=(3,), steps=_STALL_STEPS),
            Fault(kind="loader", size=1.2),
            Fault(kind="host", size=1.1, ranks=(0,)),
        ),
    ),
    "ddp": Job(
        loop=("--wrap", "ddp", "--print-every", "10"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(3,)),
            Fault(kind="host", size=0.3, ranks=(2,)),
            Fault(kind="loader", size=1.2),
            Fault(kind="host", size=1.1, ranks=(1,)),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=_STALL_STEPS),
        ),
    ),
    "pp2dp2": Job(
        megatron=megatron_of(12, 24, *PP2),
        faults=(
            Fault(kind="host", size=0.25, ranks=(0,)),
            Fault(kind="gpu", size=0.3, ranks=(3,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="stall", size=0.6, ranks=(1,), steps=_STALL_STEPS),
        ),
    ),
    "pp4": Job(
        megatron=megatron_of(12, 16, "--pipeline-model-parallel-size", "4"),
        faults=(
            Fault(kind="gpu", size=0.3, ranks=(2,)),
            Fault(kind="stall", size=0.6, ranks=(3,), steps=_STALL_STEPS),
            Fault(kind="host", size=0.25, ranks=(1,)),
            Fault(kind="loader", size=0.3),
        ),
    ),
    "dp2": Job(
        gpus=2,
        megatron=megatron_of(12, 32),
        faults=(
            Fault(kind="loader", size=0.4),
            Fault(kind="gpu", size=0.15, ranks=(1,)),
            Fault(kind="host", size=0.3, ranks=(0,)),
            Fault(kind="stall", size=0.6, ranks=(1,), steps=_STALL_STEPS),
        ),
    ),
    "tp2": Job(
        gpus=2,
        megatron=megatron_of(12, 8, *TP2),
        faults=(
            Fault(kind="gpu", size=0.5, ranks=(1,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="host", size=0.3, ranks=(0,)),
        ),
    ),
    "pp2": Job(
        gpus=2,
        megatron=megatron_of(12, 16, *PP2),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="host", size=0.4, ranks=(1,)),
        ),
    ),
    "ddp2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "8", "--print-every", "10"),
        faults=(
            Fault(kind="loader", size=1.4),
            Fault(kind="gpu", size=0.15, ranks=(1,)),
            Fault(kind="host", size=1.3, ranks=(0,)),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=_STALL_STEPS),
        ),
    ),
    "fsdp2x2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "8"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="loader", size=1.4),
            Fault(kind="gpu", size=0.12, ranks=(1,)),
            Fault(kind="host", size=1.3, ranks=(1,)),
        ),
    ),
    "trainer2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "4"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(1,)),
            Fault(kind="loader", size=0.5),
            Fault(kind="host", size=0.5, ranks=(0,)),
            Fault(kind="stall", size=0.6, ranks=(1,), steps=_STALL_STEPS),
        ),
    ),
    "lightning2": Job(
        gpus=2,
        script="lightning_job.py",
        own_launcher=True,
        loop=("--micro-batch", "4"),
        faults=(
            Fault(kind="loader", size=0.5),
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="host", size=0.5, ranks=(1,)),
        ),
    ),
    # Steps that vary, or unusual collectives: many healthy steps, then one fault.
    "evaluation2": _varied("evaluation", Fault(kind="host", size=0.4, ranks=(1,))),
    "checkpoint2": _varied("checkpoint", Fault(kind="gpu", size=0.3, ranks=(1,))),
    "lengths2": _varied("lengths", Fault(kind="host", size=1.0, ranks=(1,), steps=20)),
    "growing2": _varied("growing", Fault(kind="gpu", size=0.5, ranks=(0,))),
    "offload2": _varied("offload", Fault(kind="host", size=0.4, ranks=(0,)), more=("--layers", "8")),
    "tensor2": _varied("tensor", Fault(kind="host", size=0.4, ranks=(1,))),
    "pipeline2": _varied("pipeline", Fault(kind="gpu", size=0.3, ranks=(1,)), more=("--layers", "20")),
    "graphs2": _varied("graphs", Fault(kind="host", size=0.5, ranks=(1,))),
    "crash2": _varied("crash", launcher=("--max-restarts", "1")),
    "rollouts2": _varied("rollouts", Fault(kind="host", size=0.4, ranks=(1,)), steps=60),
    "local2": _varied("local", Fault(kind="gpu", size=0.4, ranks=(1,))),
    "adversarial2": _varied("adversarial", Fault(kind="host", size=0.2, ranks=(0,)), steps=60),
    # Kinds of jobs that perfd was not built on.
    "sharded2": unusual(
        "sharded",
        Fault(kind="gpu", size=0.3, ranks=(1,), steps=20),
        Fault(kind="host", size=1.2, ranks=(0,), steps=15),
        spawn=2,
    ),
    "zero2": unusual(
        "zero",
        Fault(kind="stall", size=0.6, ranks=(1,), steps=30),
        Fault(kind="gpu", size=0.3, ranks=(0,), steps=20),
        more=("--micro-batch", "2", "--accumulate", "4"),
    ),
    "images2": unusual(
        "images",
        Fault(kind="loader", size=1.0, steps=30),
        Fault(kind="host", size=0.8, ranks=(1,), steps=30),
        Fault(kind="gpu", size=0.4, ranks=(0,), steps=30),
        more=("--micro-batch", "256", "--print-every", "10"),
        steps=60,
    ),
    "recommend2": unusual(
        "recommend",
        Fault(kind="gpu", size=0.4, ranks=(1,), steps=30),
        Fault(kind="host", size=1.0, ranks=(0,), steps=30),
        steps=50,
    ),
    "ring2": unusual(
        "ring",
        Fault(kind="gpu", size=0.3, ranks=(0,), steps=24),
        Fault(kind="host", size=1.0, ranks=(1,), steps=20),
    ),
    "bucketless2": unusual(
        "bucketless",
        Fault(kind="host", size=0.3, ranks=(1,), steps=20),
        Fault(kind="gpu", size=0.2, ranks=(0,), steps=20),
        more=("--print-every", "1"),
    ),
    "compiled2": unusual(
        "compiled",
        Fault(kind="gpu", size=0.3, ranks=(1,), steps=20),
        more=("--layers", "6", "--micro-batch", "16"),
    ),
    "garbage2": unusual(
        "plain",
        Fault(kind="garbage", size=8.0, ranks=(1,), steps=30),
        Fault(kind="gpu", size=0.25, ranks=(1,), steps=20),
    ),
    "jax2": Job(
        gpus=2,
        script="jax_job.py",
        own_launcher=True,
        faults=(
            Fault(kind="host", size=0.6, ranks=(1,), steps=20),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=30),
        ),
        loop=("--layers", "16", "--hidden", "4096", "--micro-batch", "4"),
        healthy_steps=30,
        steps_between=20,
    ),
    "generate1": unusual("generate", Fault(kind="host", size=0.6, steps=30), gpus=1, steps=60),
    "diffusion1": unusual(
        "diffusion",
        Fault(kind="host", size=1.0, steps=30),
        Fault(kind="stall", size=0.6, steps=30),
        gpus=1,
        steps=90,
    ),
    "recompute2": Job(
        gpus=2,
        megatron=megatron_of(12, 16, *_RECOMPUTED, "--use-distributed-optimizer"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="loader", size=0.4),
            Fault(kind="host", size=0.4, ranks=(1,)),
        ),
    ),
    "saving2": Job(
        gpus=2,
        megatron=megatron_of(8, 16, *_SAVING),
        faults=(Fault(kind="gpu", size=0.3, ranks=(1,)),),
        healthy_steps=60,
    ),
    # One GPU: no peers, and no collectives that show steps. Only activity and a log show a fault, and they
    # need more time.
    "one": _alone("loop_job.py", "--wrap", "none", *_SMALL_BATCHES, "--print-every", "5"),
    "silent1": _alone("loop_job.py", "--wrap", "none", *_SMALL_BATCHES, "--print-every", "100000"),
    "trainer1": _alone("trainer_job.py", "--micro-batch", "4", size=0.6, steps=30),
    "lightning1": _alone("lightning_job.py", "--devices", "1", "--micro-batch", "4", size=0.6, steps=30),
    "megatron1": Job(
        gpus=1,
        megatron=megatron_of(8, 16),
        faults=(
            Fault(kind="loader", size=0.4, steps=_STALL_STEPS),
            Fault(kind="host", size=0.4, steps=_STALL_STEPS),
        ),
    ),
    "evaluation1": replace(
        _varied("evaluation", Fault(kind="stall", size=0.6, steps=_STEPS_ALONE)), gpus=1
    ),
    "lengths1": replace(_varied("lengths"), gpus=1),
    "growing1": replace(_varied("growing"), gpus=1),
    "graphs1": replace(_varied("graphs"), gpus=1),
    "one_storage": Job(
        gpus=1,
        own_launcher=True,
        loop=("--wrap", "none", *_SMALL_BATCHES, "--print-every", "10"),
        slow_data=("storage", 0.08),
    ),
    # Two workers load each batch, so that a sample's time counts half.
    "ddp2storage": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "8", "--print-every", "10"),
        slow_data=("storage", 0.08),
    ),
    "fsdp2x2decoding": Job(gpus=2, loop=("--wrap", "fsdp2"), slow_data=("decoding", 0.08)),
}  # fmt: skip
