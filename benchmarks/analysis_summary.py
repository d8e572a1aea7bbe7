"""Time to derive the summary of a large job from its state.

    python -m benchmarks.analysis_summary [--gpus 1024] [--steps 1000] [--rounds 9] [--json]

The best of several rounds counts, because other work on the machine can only make a round slower.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData, PhaseTable, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.gpu_peaks import load_peaks
from perfd.model import GpuInfo, JobDescription, ModelShape, ParallelLayout, Recompute

SCHEMA = "perfd.bench.summary/1"
_TIMERS_S = {
    "forward-backward": 0.85,
    "forward-compute": 0.25,
    "backward-compute": 0.5,
    "all-grads-sync": 0.05,
    "optimizer": 0.05,
    "batch-generator": 0.005,
    "forward-recv": 0.1,
    "backward-recv": 0.1,
}
_METRICS = (
    "sm_active_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "graphics_active_ratio",
    "power_w",
    "sm_clock_hz",
    "clocks_event_reasons_bits",
    "memory_used_bytes",
)
_WINDOW = 50


def measure(gpus: int = 1024, steps: int = 1000, rounds: int = 9) -> dict[str, Any]:
    """Seconds a summary, over the newest 50 steps and over all, of both kinds of timers."""
    peaks = load_peaks()
    result: dict[str, Any] = {"schema": SCHEMA, "gpus": gpus, "steps": steps}
    for name, by_rank in (("extremes", False), ("by_rank", True)):
        job = made_job(gpus, steps, by_rank=by_rank)
        for span, window in (("window", _WINDOW), ("all", None)):
            settings = AnalysisSettings(peaks=peaks, window_steps=window)
            result[f"{name}_{span}_s"] = min(_seconds(job, settings) for _ in range(rounds))
    return result


def made_job(gpus: int, steps: int, *, by_rank: bool) -> JobData:
    """A job of 8 stages whose every number is known, with one GPU sample a step."""
    random = np.random.default_rng(1)
    step_time_s = 1 + 0.01 * random.standard_normal(steps)
    ends = np.cumsum(step_time_s)
    absent = np.full(steps, np.nan)
    extremes = {name: base + 0.001 * random.random(steps) for name, base in _TIMERS_S.items()}
    ranks = {name: base + 0.001 * random.random((steps, gpus)) for name, base in _TIMERS_S.items()}
    number = np.arange(1, steps + 1)
    info = [GpuInfo(index=i, name="NVIDIA H100 80GB HBM3", max_sm_clock_hz=1.98e9) for i in range(8)]
    return JobData(
        name="made",
        now_unix_s=float(ends[-1]),
        description=_description(gpus),
        steps=StepTable(
            step=number,
            time_unix_s=ends,
            step_time_s=step_time_s,
            steps_covered=np.ones(steps, dtype=np.int64),
            warmup=number <= 2,
            flops_per_s_per_gpu=4e14 / step_time_s,
            tokens_per_s=absent,
            samples_per_s=absent,
            global_batch_size=np.full(steps, 2048.0),
            loss=absent,
            learning_rate=absent,
        ),
        phases=PhaseTable(
            step=number,
            min_s={} if by_rank else {name: 0.98 * values for name, values in extremes.items()},
            max_s={} if by_rank else extremes,
            by_rank_s=ranks if by_rank else {},
        ),
        gpu=GpuTable(
            time_unix_s=ends - 0.5,
            gpus=[GpuKey(node=f"node{rank // 8}", gpu=str(rank % 8), rank=rank) for rank in range(gpus)],
            metrics={
                name: (0.5 + 0.05 * random.random((steps, gpus))).astype(np.float32) for name in _METRICS
            },
        ),
        gpu_infos={f"node{node}": info for node in range(gpus // 8)},
    )


def _description(gpus: int) -> JobDescription:
    return JobDescription(
        job="made",
        framework="megatron-lm",
        model=ModelShape(
            layers=80,
            hidden_size=8192,
            ffn_size=28672,
            attention_heads=64,
            kv_heads=8,
            head_size=128,
            sequence_length=8192,
            vocab_size=128256,
            gated_mlp=True,
        ),
        parallel=ParallelLayout(
            world_size=gpus,
            tp=8,
            pp=8,
            dp=gpus // 64,
            cp=1,
            ep=1,
            vp=1,
            micro_batch_size=1,
            global_batch_size=2048,
        ),
        precision="bf16",
        recompute=Recompute.NONE,
    )


def _seconds(job: JobData, settings: AnalysisSettings) -> float:
    started = time.perf_counter()
    summarise(job, settings)
    return time.perf_counter() - started


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1024, help="a multiple of 64")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help=f"print {{'schema': '{SCHEMA}', ...}}")
    args = parser.parse_args()
    result = measure(args.gpus, args.steps, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    print(f"summary of {args.gpus} GPUs and {args.steps} steps, milliseconds")
    for key, value in result.items():
        if key.endswith("_s"):
            print(f"  {key.removesuffix('_s').replace('_', ' '):<18} {1000 * value:8.1f}")


if __name__ == "__main__":
    main()
