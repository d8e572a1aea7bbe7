"""Jobs for `phase_runs.py` in layouts and sizes that `phase_jobs.py` and `quiet_jobs.py` do not have.

Megatron-LM in each kind of parallelism, loops, Lightning and transformers with accumulated gradients, JAX in
one process and in two, two jobs side by side, and jobs that are over in seconds. Half of them are healthy.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.phase_jobs import EXPERTS, PP2, TP2, Job, megatron_of
from benchmarks.gpu.phases import Fault

_SILENT = ("--print-every", "100000")
_OVERLAPPED = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


def _of_size(hidden: int, sequence: int) -> tuple[str, ...]:
    """Arguments of Megatron-LM, in place of those that all jobs have."""
    return (
        *("--hidden-size", str(hidden), "--num-attention-heads", str(hidden // 128)),
        *("--seq-length", str(sequence), "--max-position-embeddings", str(sequence)),
    )


def _loop(*arguments: str, faults: tuple[Fault, ...] = (), steps: int = 60) -> Job:
    return Job(gpus=2, loop=(*arguments, *_SILENT), faults=faults, healthy_steps=steps)


def _jax(*arguments: str, faults: tuple[Fault, ...] = (), perfd: tuple[str, ...] = ()) -> Job:
    return Job(
        gpus=2,
        script="jax_job.py",
        own_launcher=True,
        loop=arguments,
        faults=faults,
        perfd=perfd,
        healthy_steps=40,
        steps_between=20,
    )


FRESH_JOBS: Mapping[str, Job] = {
    "megatrontp2": Job(gpus=2, megatron=megatron_of(18, 6, *TP2, *_of_size(1536, 2048)), healthy_steps=70),
    "megatronpp2": Job(
        gpus=2,
        megatron=megatron_of(16, 20, *PP2, *_of_size(1792, 2048)),
        faults=(Fault(kind="host", size=0.4, ranks=(1,), steps=24),),
        healthy_steps=36,
    ),
    "megatronep2": Job(
        gpus=2,
        megatron=megatron_of(6, 12, *EXPERTS, "--expert-model-parallel-size", "2", *_of_size(1536, 1024)),
        faults=(Fault(kind="gpu", size=0.4, ranks=(0,), steps=30),),
        healthy_steps=40,
    ),
    "megatrondp2": Job(
        gpus=2,
        megatron=megatron_of(9, 24, *_OVERLAPPED, *_of_size(2304, 1024)),
        faults=(Fault(kind="stall", size=0.7, ranks=(1,), steps=30),),
        healthy_steps=40,
    ),
    "megatronvp2": Job(
        gpus=2,
        megatron=megatron_of(12, 16, *PP2, "--num-layers-per-virtual-pipeline-stage", "3"),
        healthy_steps=60,
    ),
    "ddpacc2": _loop(
        *("--wrap", "ddp", "--layers", "14", "--hidden", "1280", "--accumulate", "5", "--micro-batch", "3"),
        faults=(Fault(kind="loader", size=0.5, steps=30),),
    ),
    "fsdpacc2": _loop(
        *("--wrap", "fsdp2", "--layers", "11", "--hidden", "1792", "--micro-batch", "5"), steps=90
    ),
    "trainerddp2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "3", "--accumulate", "3", "--layers", "9"),
        faults=(Fault(kind="host", size=0.6, ranks=(0,), steps=30),),
        healthy_steps=40,
    ),
    "lightningddp2": Job(
        gpus=2,
        script="lightning_job.py",
        own_launcher=True,
        loop=("--micro-batch", "3", "--accumulate", "2", "--layers", "13"),
        healthy_steps=90,
    ),
    "jaxdeep1p": _jax(
        *("--processes", "1", "--layers", "24", "--hidden", "3072", "--micro-batch", "3", *_SILENT),
        faults=(Fault(kind="gpu", size=0.4, ranks=(1,), steps=40),),
    ),
    "jaxwide2p": _jax(
        *("--layout", "data", "--layers", "7", "--hidden", "5120", "--micro-batch", "3", *_SILENT),
        faults=(Fault(kind="stall", size=0.6, ranks=(1,), steps=40),),
    ),
    "jaxtraced2p": _jax(
        *("--layers", "12", "--hidden", "4096", "--micro-batch", "4", "--profiler-port", "9441"),
        perfd=("--jax",),
        faults=(Fault(kind="gpu", size=0.6, ranks=(1,), steps=90),),
    ),
    "jaxtraced1p": _jax(
        *("--processes", "1", "--layers", "12", "--hidden", "4096", "--micro-batch", "4"),
        *("--profiler-port", "9451"),
        perfd=("--jax",),
        faults=(Fault(kind="gpu", size=0.6, ranks=(1,), steps=90),),
    ),
    "pair2": Job(
        gpus=2,
        script="beside_job.py",
        own_launcher=True,
        loop=("--micro-batch", "3", "--layouts", "fsdp2", "ddp"),
        healthy_steps=120,
    ),
    "brief2": _loop("--wrap", "ddp", "--layers", "8", "--accumulate", "1", steps=40),
    "briefest2": _loop("--wrap", "fsdp2", "--layers", "10", "--accumulate", "1", steps=16),
}
