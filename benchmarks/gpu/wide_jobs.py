"""Jobs for `phase_runs.py` on 4 GPUs, and on 3 of them, in layouts that `phase_jobs.py` does not have.

Megatron-LM with all ranks in one tensor group, interleaved stages, experts beside data parallelism, sharded
optimizers, rare lines of the log and unequal stages; loops in two dimensions of PyTorch's device mesh, and
those of the other modules with more ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.phase_jobs import EXPERTS, PP2, TENSOR_PARALLEL, TP2, Job, megatron_of
from benchmarks.gpu.phases import Fault

_PP4 = ("--pipeline-model-parallel-size", "4")
_TP4 = (TENSOR_PARALLEL, "4")
_EP2 = (*EXPERTS, "--expert-model-parallel-size", "2")
_OVERLAPPED = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")
_SILENT = ("--print-every", "100000")
_WIDE = ("--hidden-size", "4096", "--num-attention-heads", "32")
_SAVING = (
    *("--save", "/tmp/perfd-benchmark-saving4", "--save-interval", "30"),
    *("--eval-interval", "25", "--eval-iters", "6", "--split", "90,10,0"),
)


def _fault(kind: str, size: float, *ranks: int, steps: int = 16) -> Fault:
    return Fault(kind=kind, size=size, ranks=ranks, steps=steps)


def _megatron(*arguments: str, faults: tuple[Fault, ...] = (), gpus: int = 4, steps: int = 24) -> Job:
    return Job(gpus=gpus, megatron=arguments, faults=faults, healthy_steps=steps, steps_between=12)


def _loop(
    *arguments: str,
    faults: tuple[Fault, ...] = (),
    script: str = "loop_job.py",
    gpus: int = 4,
    steps: int = 40,
) -> Job:
    return Job(gpus=gpus, script=script, loop=arguments, faults=faults, healthy_steps=steps, steps_between=24)


def _novel(kind: str, *arguments: str, faults: tuple[Fault, ...]) -> Job:
    sizes = ("--accumulate", "1", "--micro-batch", "8")
    return _loop("--kind", kind, *sizes, *arguments, script="novel_job.py", faults=faults)


WIDE_JOBS: Mapping[str, Job] = {
    "tp4": _megatron(
        *megatron_of(12, 8, *_TP4),
        faults=(_fault("gpu", 0.9, 2), _fault("host", 0.3, 1), _fault("loader", 0.5)),
    ),
    "interleaved4": _megatron(
        *megatron_of(16, 32, *_PP4, "--num-layers-per-virtual-pipeline-stage", "2"),
        faults=(_fault("gpu", 0.3, 1), _fault("host", 0.3, 3), _fault("stall", 0.6, 0, steps=20)),
    ),
    "ep2dp2": _megatron(
        *megatron_of(6, 32, *_EP2),
        faults=(_fault("gpu", 0.4, 3), _fault("host", 0.4, 0), _fault("loader", 0.4)),
    ),
    "sharded4": _megatron(
        *megatron_of(12, 32, *_OVERLAPPED),
        faults=(_fault("gpu", 0.2, 0), _fault("host", 0.4, 2), _fault("stall", 0.6, 1, steps=20)),
    ),
    "rare4": _megatron(
        *megatron_of(12, 16, *TP2, *PP2, "--log-interval", "10"),
        faults=(_fault("host", 0.4, 0, steps=24), _fault("gpu", 0.9, 3, steps=24)),
    ),
    "early4": _megatron(
        *megatron_of(12, 16, *TP2), faults=(_fault("host", 0.4, 1, steps=50), _fault("gpu", 0.9, 2)), steps=7
    ),
    "largetp2dp2": _megatron(
        *megatron_of(6, 32, *TP2, *_WIDE),
        faults=(_fault("gpu", 0.3, 1), _fault("gpu", 0.3, 2), _fault("loader", 0.3)),
    ),
    "uneven4": _megatron(
        *megatron_of(12, 16, *_PP4, "--decoder-first-pipeline-num-layers", "6"),
        faults=(_fault("host", 0.5, 2, steps=24),),
        steps=40,
    ),
    "recomputedpp2dp2": _megatron(
        *megatron_of(12, 24, *PP2, *_OVERLAPPED),
        *("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
        faults=(_fault("gpu", 0.12, 1, steps=24), _fault("host", 0.15, 2, steps=24)),
    ),
    "saving4": _megatron(
        *megatron_of(8, 32, *_SAVING), faults=(_fault("gpu", 0.3, 3), _fault("loader", 0.4)), steps=60
    ),
    "dp3": _megatron(
        *megatron_of(12, 24),
        gpus=3,
        faults=(_fault("gpu", 0.2, 1), _fault("host", 0.4, 2), _fault("busy", 0.4, 0)),
    ),
    "healthytp2pp2": _megatron(*megatron_of(16, 32, *TP2, *PP2), steps=60),
    "healthyep4": _megatron(*megatron_of(10, 24, *EXPERTS, "--log-interval", "5"), steps=60),
    "hybrid4": _novel("hybrid", *_SILENT, faults=(_fault("gpu", 0.3, 1, steps=30), _fault("host", 1.1, 2))),
    "grid4": _novel(
        "grid", "--layers", "12", faults=(_fault("gpu", 0.6, 3, steps=30), _fault("host", 0.7, 0))
    ),
    "stages4": _novel(
        *("pipeline", "--layers", "20", "--hidden", "1536"),
        faults=(_fault("gpu", 0.3, 2, steps=30), _fault("host", 0.5, 1, steps=30)),
    ),
    "ddp3": _loop(
        *("--wrap", "ddp", "--accumulate", "3", "--micro-batch", "4"),
        gpus=3,
        faults=(_fault("loader", 0.6, 1, steps=24), _fault("gpu", 0.25, 0, steps=24)),
    ),
    "trainer4": _loop(
        *("--micro-batch", "4", "--layers", "8", "--hidden", "1536"),
        script="trainer_job.py",
        faults=(_fault("loader", 0.9, steps=40), _fault("host", 0.9, 3, steps=40)),
    ),
    "trainerfsdp4": _loop(
        *("--micro-batch", "4", "--accumulate", "2", "--layers", "8", "--fsdp"),
        script="trainer_job.py",
        faults=(_fault("gpu", 0.3, 2, steps=40),),
    ),
    "lightningfsdp4": Job(
        script="lightning_job.py",
        own_launcher=True,
        loop=("--devices", "4", "--strategy", "fsdp", "--micro-batch", "4", "--layers", "10"),
        faults=(_fault("gpu", 0.3, 1, steps=40), _fault("stall", 0.5, 3, steps=40)),
        healthy_steps=60,
        steps_between=30,
    ),
    "jaxfsdp4p": Job(
        script="jax_job.py",
        own_launcher=True,
        loop=("--processes", "4", "--layers", "16", "--hidden", "4096", "--micro-batch", "4"),
        faults=(_fault("gpu", 0.4, 2, steps=30), _fault("host", 0.6, 1, steps=30)),
        healthy_steps=40,
        steps_between=20,
    ),
    "jaxdata4": Job(
        script="jax_job.py",
        own_launcher=True,
        loop=("--processes", "1", "--devices", "4", "--layout", "data", "--micro-batch", "4", *_SILENT),
        faults=(_fault("gpu", 0.4, 3, steps=40),),
        healthy_steps=40,
    ),
    "critics4": _novel("critics", faults=(_fault("gpu", 0.3, 0, steps=30), _fault("host", 0.6, 1))),
    "exchanged4": _novel(
        "exchanged", *_SILENT, faults=(_fault("gpu", 0.3, 2, steps=30), _fault("host", 0.9, 1))
    ),
    "broadcasted4": _novel("broadcasted", faults=(_fault("gpu", 0.3, 3, steps=30),)),
    "healthyddp4": _loop(
        "--wrap", "ddp", "--accumulate", "2", "--micro-batch", "3", "--layers", "12", *_SILENT, steps=120
    ),
    "healthyfsdp4": _loop("--wrap", "fsdp2", "--accumulate", "3", "--micro-batch", "2", steps=100),
}
