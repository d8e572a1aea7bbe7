"""Jobs for `phase_runs.py` that are drawn at random: layout, sizes, options, faults and when they begin.

Jobs chosen by hand are those that their author thought of. These are drawn from a seed, so that the share of
right headlines over new seeds is an estimate for unseen jobs. Sizes are chosen so that a step
takes 0.2 to 0.9 s on 4 H100s by the number of its operations; what it takes is measured. In
`recorded_random` the first six were drawn for steps of 0.3 to 1.5 s, and those that a time limit ended before
any fault, 1 and 8, are left out. `pair39` and so on are drawn for two GPUs, `alone1` and so on for one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from benchmarks.gpu.phase_jobs import EXPERTS, TENSOR_PARALLEL, Job
from benchmarks.gpu.phases import Fault

SEEDS = range(1, 161)
PAIR_SEEDS = range(39, 161)
"""Of jobs on two GPUs."""
ALONE_SEEDS = range(1, 41)
"""Of jobs on one GPU."""
_STEP_S = (0.2, 0.9)
_HEALTHY_S, _FAULT_S, _BETWEEN_S = (5.0, 15.0), (8.0, 12.0), (6.0, 9.0)
_MOST_FAULTS = 2
_HEALTHY_SHARE = 0.25
"""Of jobs, without any fault."""
_FLOPS = {"megatron": 170e12, "loop": 330e12}
"""Of a GPU, as such jobs reached them in earlier runs."""
_LAUNCHES_S = {"megatron": 2.6e-3, "loop": 1.4e-3}
"""Host time to launch one layer of a micro-batch, forward and backward, in those runs."""
_SEQUENCE = 2048
_Layout = tuple[str, int, tuple[str, ...], int, int, int]
_PIPELINE_PARALLEL = "--pipeline-model-parallel-size"
_LAYOUTS: Mapping[int, tuple[_Layout, ...]] = {
    # By GPUs: name, weight, arguments, replicas of the data, stages, ranks that share a layer.
    4: (
        ("dp4", 3, (), 4, 1, 1),
        ("tp4", 2, (TENSOR_PARALLEL, "4"), 1, 1, 4),
        ("tp2dp2", 3, (TENSOR_PARALLEL, "2"), 2, 1, 2),
        ("pp4", 2, (_PIPELINE_PARALLEL, "4"), 1, 4, 1),
        ("pp2dp2", 3, (_PIPELINE_PARALLEL, "2"), 2, 2, 1),
        ("tp2pp2", 2, (TENSOR_PARALLEL, "2", _PIPELINE_PARALLEL, "2"), 1, 2, 2),
        ("ep4", 2, EXPERTS, 4, 1, 1),
        ("ep2dp2", 1, (*EXPERTS, "--expert-model-parallel-size", "2"), 4, 1, 1),
    ),
    2: (
        ("dp2", 3, (), 2, 1, 1),
        ("tp2", 3, (TENSOR_PARALLEL, "2"), 1, 1, 2),
        ("pp2", 3, (_PIPELINE_PARALLEL, "2"), 1, 2, 1),
        ("ep2", 2, (*EXPERTS, "--expert-model-parallel-size", "2"), 2, 1, 1),
    ),
    1: (
        ("alone", 3, (), 1, 1, 1),
        ("experts", 1, (*EXPERTS, "--expert-model-parallel-size", "1"), 1, 1, 1),
    ),
}
_LOOPS = (
    # Weight, script, arguments; the number of GPUs follows for those with their own launcher.
    (3, "loop_job.py", ("--wrap", "ddp")),
    (3, "loop_job.py", ("--wrap", "fsdp2")),
    (1, "novel_job.py", ("--kind", "grid")),
    (1, "novel_job.py", ("--kind", "hybrid")),
    (1, "novel_job.py", ("--kind", "pipeline")),
    (1, "novel_job.py", ("--kind", "broadcasted")),
    (1, "novel_job.py", ("--kind", "regional")),
    (1, "novel_job.py", ("--kind", "owned")),
    (2, "trainer_job.py", ()),
    (1, "trainer_job.py", ("--fsdp",)),
    (1, "lightning_job.py", ("--strategy", "fsdp", "--devices")),
    (1, "lightning_job.py", ("--strategy", "ddp", "--devices")),
    (1, "jax_job.py", ("--processes",)),
)
_LOOPS_ALONE = (
    (3, "loop_job.py", ("--wrap", "none")),
    (3, "trainer_job.py", ()),
    (2, "lightning_job.py", ("--devices",)),
    (2, "jax_job.py", ("--processes", "1", "--devices")),
    *((1, "unusual_job.py", ("--kind", kind)) for kind in ("generate", "diffusion")),
    *((1, "varied_job.py", ("--kind", kind)) for kind in ("lengths", "graphs", "adversarial")),
    *(
        (1, "novel_job.py", ("--kind", kind))
        for kind in (
            *("adapters", "evaluated", "saved", "curriculum", "pictures", "regional", "distilled", "sampled"),
            *("policy", "accelerated", "background", "dropped", "muon", "preferred", "recurrent", "scaled"),
            *("threaded", "budgeted", "profiled", "recompiled"),
        )
    ),
)
_OWN_LAUNCHERS = frozenset({"lightning_job.py", "jax_job.py"})
_WITHOUT_TORCHRUN = frozenset(
    {"loop_job.py", "trainer_job.py", "lightning_job.py", "jax_job.py", "unusual_job.py"}
)
"""Scripts of jobs on one GPU that run as a single process."""
_FAULTS = (("gpu", 3), ("host", 3), ("loader", 2), ("stall", 1), ("busy", 1))
_FAULTS_ALONE = _FAULTS[1:]
"""Without peers, a GPU with more work looks like a model that needs it."""
_NO_DATALOADER = frozenset({"novel_job.py", "jax_job.py", "unusual_job.py", "varied_job.py"})


def random_job(seed: int, gpus: int = 4) -> Job:
    """The job of this seed, on 4, 2 or 1 GPUs."""
    draw = random.Random(seed)
    return _megatron(draw, gpus) if draw.random() < 0.6 else _loop(draw, gpus)


def _megatron(draw: random.Random, gpus: int) -> Job:
    layouts = _LAYOUTS[gpus]
    _, _, layout, replicas, stages, shards = draw.choices(layouts, [one[1] for one in layouts])[0]
    experts = layout[: len(EXPERTS)] == EXPERTS
    hidden = draw.choice((1024, 1536, 2048, 2048, 3072) if not experts else (1024, 2048))
    layers = stages * draw.choice((2, 4, 6, 8)) if stages > 1 else draw.choice((6, 8, 12, 16))
    layers = min(layers, 8) if experts else layers
    sequence, micro_batch = draw.choice((1024, 2048, 2048)), draw.choice((1, 2, 2, 4))
    batch_step = micro_batch * replicas
    aim_s = draw.uniform(*_STEP_S)
    sample_s = _sample_s("megatron", layers * (2 if experts else 1), hidden, sequence, gpus)
    round_s = max(sample_s * batch_step, _LAUNCHES_S["megatron"] * layers / stages)
    rounds = max(2 * stages, round(aim_s / round_s))
    options: list[str] = []
    if draw.random() < 0.3:
        options += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    if draw.random() < 0.2:
        options += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        options += ["--recompute-num-layers", "1"]
    if draw.random() < 0.3:
        options += ["--manual-gc", "--manual-gc-interval", "10"]
    if draw.random() < 0.3 and not experts:
        options += ["--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"]
    if draw.random() < 0.25:
        options += ["--log-interval", str(draw.choice((2, 5, 10)))]
    heads = str(max(4 * shards, hidden // 128))
    sizes = (
        *("--num-layers", str(layers), "--hidden-size", str(hidden), "--num-attention-heads", heads),
        *("--seq-length", str(sequence), "--max-position-embeddings", str(sequence)),
        *("--micro-batch-size", str(micro_batch), "--global-batch-size", str(rounds * batch_step)),
    )
    return _job(draw, gpus, rounds * round_s, _faults(gpus), megatron=(*sizes, *layout, *options))


def _loop(draw: random.Random, gpus: int) -> Job:
    loops = _LOOPS if gpus > 1 else _LOOPS_ALONE
    _, script, arguments = draw.choices(loops, [one[0] for one in loops])[0]
    hidden, layers = draw.choice((1024, 1536, 2048)), draw.choice((6, 8, 12, 16))
    micro_batch = draw.choice((2, 4, 8))
    sample_s = _sample_s("loop", layers, hidden, _SEQUENCE, gpus) * gpus
    simple = script not in _NO_DATALOADER
    micro_batch = micro_batch if simple else 8
    round_s = max(sample_s * micro_batch, _LAUNCHES_S["loop"] * layers)
    accumulate = max(1, round(draw.uniform(*_STEP_S) / round_s)) if simple else 1
    silent = script != "lightning_job.py" and draw.random() < 0.4
    faults = _faults(gpus) if simple else [one for one in _faults(gpus) if one[0] != "loader"]
    own_launcher = script in (_OWN_LAUNCHERS if gpus > 1 else _WITHOUT_TORCHRUN)
    return _job(
        draw,
        gpus,
        max(round_s * accumulate, 0.1),
        faults,
        script=script,
        own_launcher=own_launcher,
        loop=(
            *arguments,
            *((str(gpus),) if script in _OWN_LAUNCHERS else ()),
            *("--layers", str(layers), "--hidden", str(hidden)),
            *("--micro-batch", str(micro_batch), "--accumulate", str(accumulate)),
            *(("--print-every", "100000") if silent else ()),
        ),
    )


def _faults(gpus: int) -> Sequence[tuple[str, int]]:
    return _FAULTS if gpus > 1 else _FAULTS_ALONE


def _sample_s(family: str, layers: int, hidden: int, sequence: int, gpus: int) -> float:
    """What one sequence takes on all GPUs together."""
    parameters = 12 * layers * hidden**2 + 32_000 * hidden
    return 6 * parameters * sequence / (_FLOPS[family] * gpus)


def _job(
    draw: random.Random, gpus: int, step_s: float, kinds: Sequence[tuple[str, int]], **fields: object
) -> Job:
    def steps(seconds: tuple[float, float]) -> int:
        return max(10, round(draw.uniform(*seconds) / step_s))

    healthy = steps(_HEALTHY_S)
    faults = tuple(_fault(draw, gpus, kinds, steps) for _ in range(draw.randint(1, _MOST_FAULTS)))
    if draw.random() < _HEALTHY_SHARE:
        healthy, faults = healthy + steps(_FAULT_S) + steps(_BETWEEN_S), ()
    make: Callable[..., Job] = Job
    return make(gpus=gpus, faults=faults, healthy_steps=healthy, steps_between=steps(_BETWEEN_S), **fields)


def _fault(
    draw: random.Random,
    gpus: int,
    kinds: Sequence[tuple[str, int]],
    steps: Callable[[tuple[float, float]], int],
) -> Fault:
    kind = draw.choices([name for name, _ in kinds], [weight for _, weight in kinds])[0]
    ranks: tuple[int, ...] = (draw.randrange(gpus),) if gpus > 1 else ()
    if kind == "loader" and draw.random() < 0.6:
        ranks = ()
    elif draw.random() < 0.1 and gpus > 2:
        ranks = tuple(sorted(draw.sample(range(gpus), 2)))
    length = steps(_FAULT_S)
    if kind == "stall":
        return Fault(kind=kind, size=round(draw.uniform(0.3, 1.0), 2), ranks=ranks, steps=max(20, length))
    return Fault(kind=kind, size=round(draw.uniform(0.15, 0.9), 2), ranks=ranks, steps=length)


RANDOM_JOBS: Mapping[str, Job] = {
    **{f"random{seed}": random_job(seed) for seed in SEEDS},
    **{f"pair{seed}": random_job(seed, 2) for seed in PAIR_SEEDS},
    **{f"alone{seed}": random_job(seed, 1) for seed in ALONE_SEEDS},
}
