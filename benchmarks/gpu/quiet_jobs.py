"""More jobs for `phase_runs.py`, most of which print nothing: only operations tell their steps.

JAX in one process and in two, loops, Lightning, transformers and Megatron-LM in layouts that `phase_jobs.py`
does not have, each with a rank that is slow for many steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.phase_jobs import EXPERTS, PP2, TP2, Job, megatron_of, unusual
from benchmarks.gpu.phases import Fault

_QUIET = ("--accumulate", "1", "--micro-batch", "8", "--print-every", "100000")


def _jax(*arguments: str, faults: tuple[Fault, ...], perfd: tuple[str, ...] = (), steps: int = 40) -> Job:
    return Job(
        gpus=2,
        script="jax_job.py",
        own_launcher=True,
        loop=("--layers", "16", "--hidden", "4096", "--micro-batch", "4", *arguments),
        faults=faults,
        perfd=perfd,
        healthy_steps=steps,
        steps_between=20,
    )


QUIET_JOBS: Mapping[str, Job] = {
    "jaxdata1p": _jax(
        *("--processes", "1", "--layout", "data"),
        faults=(Fault(kind="gpu", size=0.4, ranks=(1,), steps=30), Fault(kind="host", size=0.6, steps=20)),
    ),
    "jaxfsdp1p": _jax(
        *("--processes", "1", "--unrolled", "--ahead", "--print-every", "100000"),
        faults=(Fault(kind="gpu", size=0.4, ranks=(0,), steps=30), Fault(kind="stall", size=0.5, steps=30)),
    ),
    "jaxdata2p": _jax(
        *("--layout", "data", "--unrolled", "--ahead"),
        faults=(
            Fault(kind="gpu", size=0.4, ranks=(0,), steps=30),
            Fault(kind="garbage", size=8.0, ranks=(1,), steps=30),
        ),
    ),
    "jaxacc2p": _jax(
        *("--accumulate", "3", "--micro-batch", "2", "--print-every", "100000"),
        faults=(
            Fault(kind="gpu", size=0.4, ranks=(1,), steps=30),
            Fault(kind="host", size=0.5, ranks=(0,), steps=20),
        ),
    ),
    "jaxcapture": _jax(
        *("--processes", "1", "--profiler-port", "9431"),
        perfd=("--jax",),
        faults=(Fault(kind="gpu", size=0.6, ranks=(1,), steps=50),),
    ),
    "beside2": Job(
        gpus=2, script="beside_job.py", own_launcher=True, loop=("--micro-batch", "4"), healthy_steps=100
    ),
    "flat2": unusual(
        "flat",
        Fault(kind="gpu", size=0.3, ranks=(1,), steps=30),
        more=("--layers", "10", "--print-every", "100000"),
        steps=60,
    ),
    "ddpdeep2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--layers", "32", "--hidden", "1536", *_QUIET),
        faults=(
            Fault(kind="gpu", size=0.3, ranks=(0,), steps=24),
            Fault(kind="garbage", size=8.0, ranks=(1,), steps=30),
        ),
        healthy_steps=30,
    ),
    "fsdpdeep2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--layers", "24", "--hidden", "1536", *_QUIET),
        faults=(Fault(kind="gpu", size=0.3, ranks=(1,), steps=30),),
        healthy_steps=40,
    ),
    "lightningfsdp2": Job(
        gpus=2,
        script="lightning_job.py",
        own_launcher=True,
        loop=("--micro-batch", "4", "--accumulate", "1", "--strategy", "fsdp"),
        faults=(Fault(kind="gpu", size=0.3, ranks=(1,), steps=30),),
        healthy_steps=40,
    ),
    "lightningacc2": Job(
        gpus=2,
        script="lightning_job.py",
        own_launcher=True,
        loop=("--micro-batch", "4", "--accumulate", "3", "--layers", "10"),
        faults=(Fault(kind="gpu", size=0.3, ranks=(0,), steps=24),),
        healthy_steps=30,
    ),
    "trainerfsdp2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "4", "--accumulate", "1", "--fsdp"),
        faults=(Fault(kind="gpu", size=0.3, ranks=(1,), steps=30),),
        healthy_steps=40,
    ),
    "traineracc2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "2", "--accumulate", "4", "--layers", "12"),
        faults=(Fault(kind="host", size=0.5, ranks=(1,), steps=24),),
        healthy_steps=30,
    ),
    "overlap2": Job(
        gpus=2,
        megatron=megatron_of(
            *(8, 8),
            *("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
        ),
        faults=(Fault(kind="gpu", size=0.3, ranks=(1,), steps=24),),
        healthy_steps=30,
    ),
    "sequence2": Job(
        gpus=2,
        megatron=megatron_of(8, 8, *TP2, "--sequence-parallel"),
        faults=(Fault(kind="gpu", size=0.5, ranks=(0,), steps=24),),
        healthy_steps=30,
    ),
    "interleaved2": Job(
        gpus=2,
        megatron=megatron_of(8, 16, *PP2, "--num-layers-per-virtual-pipeline-stage", "2"),
        faults=(Fault(kind="gpu", size=0.4, ranks=(1,), steps=24),),
        healthy_steps=30,
    ),
    "experts2": Job(
        gpus=2,
        megatron=megatron_of(6, 8, *EXPERTS, "--expert-model-parallel-size", "2"),
        faults=(Fault(kind="gpu", size=0.4, ranks=(0,), steps=24),),
        healthy_steps=30,
    ),
}
