"""Jobs to analyse: made to measure, and the recordings as a reader of ten lines sees them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData, PhaseTable, StepTable
from perfd.model import GpuInfo, JobDescription, ModelShape, ParallelLayout, Recompute
from perfd.recording import bundled
from tests.support.nccl_records import stacks_of, times_of

LLAMA3_8B = ModelShape(
    layers=32,
    hidden_size=4096,
    ffn_size=14336,
    attention_heads=32,
    kv_heads=8,
    head_size=128,
    sequence_length=8192,
    vocab_size=128256,
    gated_mlp=True,
)
RECORDED_MODEL = ModelShape(
    layers=24,
    hidden_size=2048,
    ffn_size=8192,
    attention_heads=16,
    kv_heads=16,
    head_size=128,
    sequence_length=2048,
    vocab_size=32000,
)
RECORDED_LAYOUTS = {
    "dp4": {"pp": 1, "dp": 4, "global_batch_size": 32},
    "dp4_slow2": {"pp": 1, "dp": 4, "global_batch_size": 32},
    "pp2dp2": {"pp": 2, "dp": 2, "global_batch_size": 32},
    "pp4_few": {"pp": 4, "dp": 1, "global_batch_size": 8},
}
_ITERATION = re.compile(
    r"\[(?P<stamp>[\d-]+ [\d:.]+)\] iteration +(?P<step>\d+)/.*?iteration \(ms\): (?P<ms>[\d.]+) \|"
    r" throughput per GPU \(TFLOP/s/GPU\): (?P<tflops>[\d.]+).*?global batch size: +(?P<batch>\d+)"
)
_TIMER = re.compile(r" {4}([\w-]+) \.+: \(([\d.]+), ([\d.]+)\)")
_GPM = {
    "GRAPHICS_UTIL": "graphics_active_ratio",
    "SM_UTIL": "sm_active_ratio",
    "ANY_TENSOR_UTIL": "tensor_active_ratio",
    "DRAM_BW_UTIL": "dram_active_ratio",
}


def step_table(times_s: Sequence[float], **columns: Any) -> StepTable:
    """Steps 1, 2, ... that took so long, one after the other since 1000 s after the epoch."""
    times = np.array(times_s, dtype=float)
    count = len(times)
    table: dict[str, Any] = {
        "step": np.arange(1, count + 1),
        "time_unix_s": 1000 + np.cumsum(np.nan_to_num(times)),
        "step_time_s": times,
        "steps_covered": np.ones(count, dtype=np.int64),
        "warmup": np.zeros(count, dtype=bool),
        **{
            name: np.full(count, np.nan)
            for name in (
                *("flops_per_s_per_gpu", "tokens_per_s", "samples_per_s", "global_batch_size"),
                *("loss", "learning_rate"),
            )
        },
    }
    for name, values in columns.items():
        table[name] = np.full(count, values) if np.isscalar(values) else np.asarray(values)
    return StepTable(**table)


def phase_table(
    steps: StepTable,
    extremes: Mapping[str, tuple[float, float]] | None = None,
    by_rank: Mapping[str, Sequence[float]] | None = None,
) -> PhaseTable:
    """The same timers in every step, as minima and maxima or by rank."""
    count = len(steps)
    return PhaseTable(
        step=steps.step,
        min_s={name: np.full(count, least) for name, (least, _) in (extremes or {}).items()},
        max_s={name: np.full(count, most) for name, (_, most) in (extremes or {}).items()},
        by_rank_s={
            name: np.tile(np.array(ranks, float), (count, 1)) for name, ranks in (by_rank or {}).items()
        },
    )


def gpu_table(steps: StepTable, metrics: Mapping[str, Sequence[float]], *, per_step: int = 4) -> GpuTable:
    """Samples of GPUs that serve the ranks in order: the same values through every step."""
    count = len(next(iter(metrics.values()), ()))
    fractions = (np.arange(per_step) + 0.5) / per_step
    starts = steps.time_unix_s - steps.step_time_s
    times = (starts[:, None] + fractions * steps.step_time_s[:, None]).ravel()
    return GpuTable(
        time_unix_s=times,
        gpus=[GpuKey(node=f"node{rank // 8}", gpu=str(rank % 8), rank=rank) for rank in range(count)],
        metrics={
            name: np.tile(np.array(values, dtype=np.float32), (len(times), 1))
            for name, values in metrics.items()
        },
    )


def description(model: ModelShape | None = None, **layout: int | None) -> JobDescription:
    """A Megatron-LM job in bf16 whose groups are of one rank unless said otherwise."""
    sizes: dict[str, int | None] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "vp"), 1) | dict(layout)
    return JobDescription(
        job="job",
        framework="megatron-lm",
        model=model,
        parallel=ParallelLayout(**sizes),
        precision="bf16",
        recompute=Recompute.NONE,
    )


def job_data(steps: StepTable, **fields: Any) -> JobData:
    """A job that reported these steps and, unless given, nothing else."""
    nothing: dict[str, Any] = {
        "name": "job",
        "now_unix_s": float(steps.time_unix_s[-1]) if len(steps) else 1000.0,
        "description": None,
        "steps": steps,
        "phases": phase_table(steps),
        "gpu": GpuTable(time_unix_s=np.empty(0), gpus=(), metrics={}),
    }
    known = nothing | fields
    reported = {
        "collectives": stacks_of(known.get("collectives", ())),
        "nccl": times_of(known.get("nccl", ())),
    }
    return JobData(**(known | reported))


def infos(name: str, count: int, per_node: int = 8) -> dict[str, list[GpuInfo]]:
    """So many GPUs of one name, by node."""
    nodes: dict[str, list[GpuInfo]] = {}
    for index in range(count):
        info = GpuInfo(index=index % per_node, name=name, max_sm_clock_hz=1.98e9)
        nodes.setdefault(f"node{index // per_node}", []).append(info)
    return nodes


def recorded_job(name: str) -> JobData:
    """A bundled recording of 4 H200, without any knowledge of which steps were profiled."""
    steps, phases = _read_log(name)
    layout = RECORDED_LAYOUTS[name]
    described = description(RECORDED_MODEL, world_size=4, micro_batch_size=2, **layout)
    return job_data(
        steps,
        name=name,
        description=replace(described, logged_flops_convention="megatron-causal"),
        phases=phases,
        gpu=_read_nvml(name),
        gpu_infos=infos("NVIDIA H200", 4),
    )


def _read_log(name: str) -> tuple[StepTable, PhaseTable]:
    iterations: list[re.Match[str]] = []
    blocks: list[dict[str, tuple[float, float]]] = []
    for line in (bundled(name) / "node0/stdout.log").read_text(errors="replace").splitlines():
        if found := _ITERATION.search(line):
            iterations.append(found)
            blocks.append({})
        elif (timer := _TIMER.match(line)) and blocks:
            blocks[-1][timer[1]] = (float(timer[2]) / 1e3, float(timer[3]) / 1e3)
    stamps = [datetime.fromisoformat(found["stamp"]).replace(tzinfo=UTC).timestamp() for found in iterations]
    steps = step_table(
        [float(found["ms"]) / 1e3 for found in iterations],
        time_unix_s=stamps,
        warmup=[int(found["step"]) <= 2 for found in iterations],
        flops_per_s_per_gpu=[float(found["tflops"]) * 1e12 for found in iterations],
        global_batch_size=[float(found["batch"]) for found in iterations],
    )
    names = sorted(set().union(*blocks))
    columns = {timer: np.array([block.get(timer, (np.nan, np.nan)) for block in blocks]) for timer in names}
    phases = PhaseTable(
        step=steps.step,
        min_s={timer: values[:, 0] for timer, values in columns.items()},
        max_s={timer: values[:, 1] for timer, values in columns.items()},
        by_rank_s={},
    )
    return steps, phases


def _read_nvml(name: str) -> GpuTable:
    with gzip.open(bundled(name) / "node0/nvml.jsonl.gz", "rt") as file:
        samples = [json.loads(line) for line in file]
    times = sorted({sample["unix_s"] for sample in samples})
    row = {time: index for index, time in enumerate(times)}
    plain = {"power_w": ("power_w", 1.0), "sm_clock_mhz": ("sm_clock_hz", 1e6)}
    plain |= {"clocks_event_reasons": ("clocks_event_reasons_bits", 1.0)}
    plain |= {"memory_used_bytes": ("memory_used_bytes", 1.0)}
    names = [*_GPM.values(), *(column for column, _ in plain.values())]
    metrics = {column: np.full((len(times), 4), np.nan, dtype=np.float32) for column in names}
    for sample in samples:
        at = row[sample["unix_s"]], sample["gpu"]
        for key, column in _GPM.items():
            metrics[column][at] = sample["gpm"].get(key, np.nan) / 100
        for key, (column, scale) in plain.items():
            metrics[column][at] = sample.get(key, np.nan) * scale
    keys = [GpuKey(node="node0", gpu=str(index), rank=index) for index in range(4)]
    return GpuTable(time_unix_s=np.array(times), gpus=keys, metrics=metrics)
