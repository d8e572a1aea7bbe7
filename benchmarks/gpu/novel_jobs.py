"""Jobs for `phase_runs.py` of kinds that no recording had, each healthy before and after one fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.gpu.phase_jobs import PP2, TP2, Job, megatron_of
from benchmarks.gpu.phases import Fault

_SILENT = ("--print-every", "100000")
_LASTING = ("--layers", "16", "--hidden", "2048", "--micro-batch", "12", "--accumulate", "1")
_LASTING_STEPS, _LASTING_STEPS_BETWEEN, _LASTING_FAULT_STEPS = 1000, 800, 150
"""About 17 minutes at 0.31 s per step, the last fault after a quarter of an hour."""


def _novel(
    kind: str,
    fault: Fault | None,
    *more: str,
    steps: int,
    size: tuple[int, int] = (16, 2048),
    batch: tuple[int, int] = (8, 1),
    launcher: tuple[str, ...] = (),
) -> Job:
    """`size` is layers and hidden, `batch` the micro-batch and how many of them a step has."""
    return Job(
        gpus=2,
        script="novel_job.py",
        loop=(
            *("--kind", kind, "--layers", str(size[0]), "--hidden", str(size[1])),
            *("--micro-batch", str(batch[0]), "--accumulate", str(batch[1]), *more),
        ),
        faults=(fault,) if fault else (),
        healthy_steps=steps,
        launcher=launcher,
    )


def _fault(kind: str, size: float, *ranks: int, steps: int = 50) -> Fault:
    return Fault(kind=kind, size=size, ranks=ranks, steps=steps)


NOVEL_JOBS: Mapping[str, Job] = {
    "scheduled2": _novel("scheduled", _fault("gpu", 0.3, 1), steps=60, batch=(2, 8)),
    "adapters2": _novel("adapters", _fault("host", 1.1, 0), steps=60, batch=(4, 4)),
    "evaluated2": _novel("evaluated", _fault("gpu", 0.3, 0), steps=60),
    "saved2": _novel("saved", _fault("host", 1.2, 1, steps=60), steps=90, size=(8, 2048)),
    "bucketed2": _novel("bucketed", _fault("gpu", 0.4, 1, steps=70), steps=110),
    "pictures2": _novel(
        "pictures", _fault("loader", 1.3, steps=70), steps=110, size=(24, 1024), batch=(128, 1)
    ),
    "picturesone2": _novel(
        "pictures", _fault("loader", 1.3, 1, steps=70), *_SILENT, steps=110, size=(16, 1280), batch=(128, 1)
    ),
    "regional2": _novel("regional", _fault("stall", 0.4, 1), steps=70),
    "routed2": _novel("routed", _fault("gpu", 0.4, 1), steps=70, size=(8, 2048)),
    "distilled2": _novel("distilled", _fault("garbage", 6.0, 0), steps=80),
    "contrastive2": _novel("contrastive", _fault("gpu", 0.3, 0), *_SILENT, steps=90, size=(14, 2048)),
    "actors2": _novel("actors", _fault("gpu", 0.4, 1, steps=36), steps=50, batch=(16, 1)),
    "serving2": _novel("serving", _fault("host", 0.4, 1, steps=70), *_SILENT, steps=120, size=(20, 4096)),
    "sampled2": _novel("sampled", _fault("host", 0.4, 1, steps=120), steps=200, size=(12, 2048)),
    "policy2": _novel(
        "policy", _fault("host", 0.4, 0, steps=60), "--print-every", "1", steps=90, size=(8, 2048)
    ),
    "accelerated2": _novel(
        "accelerated", _fault("loader", 1.2, 1, steps=40), steps=50, size=(10, 2048), batch=(4, 4)
    ),
    "exchanged2": _novel(
        "exchanged", _fault("gpu", 0.35, 0, steps=70), *_SILENT, steps=110, size=(12, 2048), batch=(4, 1)
    ),
    "unsynced2": _novel("unsynced", _fault("gpu", 0.3, 1), *_SILENT, steps=70, size=(8, 2048), batch=(4, 4)),
    "crashed2": _novel(
        "crash", _fault("gpu", 0.3, 0), steps=90, size=(12, 2048), launcher=("--max-restarts", "1")
    ),
    "averaged2": _novel("local", _fault("stall", 0.4, 1, steps=60), steps=100, size=(12, 2048)),
    "rewarded2": _novel("rollouts", _fault("gpu", 0.3, 0, steps=40), steps=50),
    "adversarialgpu2": _novel("adversarial", _fault("gpu", 0.3, 1), *_SILENT, steps=60),
    "offloaded2": _novel("offload", _fault("gpu", 0.5, 0, steps=30), steps=40, size=(6, 2048)),
    "curriculum2": _novel("curriculum", None, steps=240, size=(12, 2048)),
    "routedhealthy2": _novel("routed", None, *_SILENT, steps=180, size=(10, 1536)),
    "muon2": _novel("muon", _fault("gpu", 0.4, 1), *_SILENT, steps=70, size=(12, 2048)),
    "owned2": _novel("owned", _fault("host", 0.5, 0), *_SILENT, steps=70, size=(12, 2048)),
    "background2": _novel("background", _fault("gpu", 0.3, 1), steps=90, size=(12, 2048)),
    "dropped2": _novel("dropped", _fault("gpu", 0.4, 0), *_SILENT, steps=90),
    "preferred2": _novel("preferred", _fault("host", 0.5, 1), steps=70, size=(8, 2048), batch=(4, 1)),
    "broadcasted2": _novel("broadcasted", _fault("host", 0.6, 0), *_SILENT, steps=80, size=(12, 2048)),
    "critics2": _novel("critics", _fault("gpu", 0.4, 1), *_SILENT, steps=60, size=(8, 2048), batch=(4, 1)),
    "hosted2": _novel("hosted", _fault("gpu", 0.4, 0), "--print-every", "1", steps=50, size=(6, 1536)),
    "smoothed2": _novel("smoothed", _fault("stall", 0.4, 0), *_SILENT, steps=90, size=(12, 2048)),
    "normalized2": _novel(
        "normalized", _fault("gpu", 0.4, 1), *_SILENT, steps=80, size=(16, 1024), batch=(64, 1)
    ),
    "compressed2": _novel("compressed", _fault("host", 0.6, 0), *_SILENT, steps=80, size=(12, 2048)),
    "scaled2": _novel("scaled", _fault("gpu", 0.3, 0), "--printing-rank", "-1", steps=80, size=(12, 2048)),
    "reported2": _novel("reported", _fault("host", 0.5, 1), *_SILENT, steps=80, size=(10, 2048)),
    "threaded2": _novel(
        "threaded", _fault("loader", 1.5), "--printing-rank", "-1", steps=80, size=(12, 2048)
    ),
    "recurrent2": _novel("recurrent", _fault("stall", 0.5, 1), steps=70, size=(3, 1024), batch=(64, 1)),
    "replicated1": replace(
        _novel("replicated", _fault("host", 0.6), steps=60, size=(10, 2048), batch=(8, 1)), gpus=1
    ),
    "lasting2": Job(
        gpus=2,
        script="novel_job.py",
        loop=("--kind", "lasting", *_LASTING, "--print-every", "10"),
        faults=(
            _fault("gpu", 0.2, 1, steps=_LASTING_FAULT_STEPS),
            _fault("stall", 0.8, 0, steps=_LASTING_FAULT_STEPS),
            _fault("loader", 0.9, steps=_LASTING_FAULT_STEPS),
        ),
        healthy_steps=_LASTING_STEPS,
        steps_between=_LASTING_STEPS_BETWEEN,
    ),
    # Faults that last for longer than the windows in which a change of pace is looked for.
    "slowlater2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "8", *_SILENT),
        faults=(_fault("gpu", 0.25, 0, steps=350),),
        healthy_steps=60,
    ),
    "latelater2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "8", *_SILENT),
        faults=(_fault("loader", 1.3, steps=180),),
        healthy_steps=60,
    ),
    "batches2": Job(
        gpus=2,
        megatron=megatron_of(
            *(8, 16, "--rampup-batch-size", "4", "4", "240"),
            *("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
        ),
        faults=(_fault("gpu", 0.3, 1, steps=24),),
        healthy_steps=60,
    ),
    "recompiled2": _novel("recompiled", _fault("gpu", 0.3, 0), steps=150, size=(12, 2048)),
    "profiled2": _novel("profiled", _fault("host", 0.6, 1, steps=60), *_SILENT, steps=100, size=(12, 2048)),
    "evaluatedalone2": _novel("evaluatedalone", _fault("gpu", 0.3, 1), steps=100, size=(12, 2048)),
    "gossiped2": _novel("gossiped", _fault("gpu", 0.3, 0), *_SILENT, steps=80, size=(12, 2048)),
    "budgeted2": _novel("budgeted", _fault("gpu", 0.3, 1), *_SILENT, steps=60, size=(12, 2048)),
    "crowded2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "4", *_SILENT),
        faults=(_fault("crowded", 4, 1), _fault("crowded", 4)),
        healthy_steps=80,
        steps_between=60,
    ),
    "crowdedall2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "4", *_SILENT),
        faults=(_fault("crowded", 1, steps=60),),
        healthy_steps=100,
    ),
    # Work of hosts that do not sleep in it, as where the main process decodes its data.
    "busyall2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "6", *_SILENT),
        faults=(_fault("busy", 1.4, steps=70),),
        healthy_steps=80,
    ),
    "busyearly2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "6", "--print-every", "10"),
        faults=(_fault("busy", 1.4, steps=80),),
        healthy_steps=7,
    ),
    "busyone2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "6", *_SILENT),
        faults=(_fault("busy", 1.2, 1),),
        healthy_steps=80,
    ),
    "earlyhost2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "6", *_SILENT),
        faults=(_fault("host", 1.3, 0, steps=90),),
        healthy_steps=7,
    ),
    "inturnsharded2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "8", "--print-every", "10"),
        faults=(
            _fault("loader", 1.4, steps=30),
            _fault("gpu", 0.35, 1, steps=30),
            _fault("loader", 1.4, 0, steps=30),
        ),
        healthy_steps=60,
        steps_between=5,
    ),
    "inturnpp2": Job(
        gpus=2,
        megatron=megatron_of(8, 16, *PP2),
        faults=(_fault("gpu", 0.35, 0, steps=25), _fault("gpu", 0.35, 1, steps=25)),
        healthy_steps=40,
        steps_between=5,
    ),
    "megatronevaluated2": Job(
        gpus=2,
        megatron=megatron_of(
            *(8, 16, *TP2, "--eval-interval", "30", "--eval-iters", "6", "--split", "90,10,0"),
            *("--log-interval", "10"),
        ),
        faults=(_fault("gpu", 0.6, 1, steps=30),),
        healthy_steps=75,
    ),
    # From nearly the first step on, too little to be named, and one fault soon after the other.
    "earlyslow2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "6", "--print-every", "10"),
        faults=(_fault("gpu", 0.3, 1, steps=130),),
        healthy_steps=7,
    ),
    "earlyloader2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "6", *_SILENT),
        faults=(_fault("loader", 1.4, steps=90),),
        healthy_steps=7,
    ),
    "slight2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "6", *_SILENT),
        faults=(_fault("gpu", 0.07, 1, steps=100),),
        healthy_steps=60,
    ),
    "inturn2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "2", "--micro-batch", "6", *_SILENT),
        faults=(_fault("gpu", 0.3, 0, steps=25), _fault("gpu", 0.3, 1, steps=25), _fault("host", 1.2, 0)),
        healthy_steps=40,
        steps_between=4,
    ),
    "copying2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "8", "--print-every", "10"),
        faults=(_fault("copying", 0.4, 0),),
        healthy_steps=80,
    ),
    "emptied2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "8", "--micro-batch", "1", "--print-every", "10"),
        faults=(_fault("emptied", 1, 1),),
        healthy_steps=70,
    ),
    "sweep2": Job(
        gpus=2,
        script="sweep_job.py",
        own_launcher=True,
        loop=("--micro-batch", "8", "--layers", "7"),
        healthy_steps=180,
    ),
    "megatronrare2": Job(
        gpus=2,
        megatron=megatron_of(8, 16, "--log-interval", "20"),
        faults=(_fault("gpu", 0.3, 1, steps=40),),
        healthy_steps=100,
    ),
    "megatronsharded2": Job(
        gpus=2,
        megatron=megatron_of(
            *(8, 16, "--use-torch-fsdp2", "--untie-embeddings-and-output-weights"),
            *("--ckpt-format", "torch_dist", "--log-interval", "5"),
        ),
        faults=(_fault("gpu", 0.3, 0, steps=30),),
        healthy_steps=40,
    ),
    "megatronlong2": Job(
        gpus=2,
        megatron=megatron_of(
            *(8, 4, "--seq-length", "8192", "--max-position-embeddings", "8192", "--micro-batch-size", "1"),
            *("--recompute-granularity", "full", "--recompute-method", "uniform"),
            *("--recompute-num-layers", "1", "--log-interval", "10", "--use-distributed-optimizer"),
        ),
        faults=(_fault("loader", 0.6, steps=30),),
        healthy_steps=40,
    ),
    "trainerrare2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "4", "--layers", "8", "--hidden", "1536", "--print-every", "50"),
        faults=(_fault("gpu", 0.35, 1, steps=100),),
        healthy_steps=150,
    ),
    "megatronuneven2": Job(
        gpus=2,
        megatron=megatron_of(12, 16, *PP2, "--decoder-first-pipeline-num-layers", "8"),
        faults=(_fault("host", 0.4, 1, steps=30),),
        healthy_steps=50,
    ),
    "validated2": Job(
        gpus=2,
        script="lightning_job.py",
        own_launcher=True,
        loop=("--micro-batch", "4", "--layers", "10", "--evaluate-every", "40"),
        faults=(_fault("host", 0.9, 0),),
        healthy_steps=80,
    ),
    "trainerchecked2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "4", "--layers", "8", "--hidden", "1536", "--evaluate-every", "30"),
        faults=(_fault("loader", 0.8),),
        healthy_steps=80,
    ),
}
