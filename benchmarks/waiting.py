"""Time to split a step's collectives into transfer and waiting, and to diagnose the job, on very many ranks.

    python -m benchmarks.waiting [--ranks 16384] [--rounds 15] [--json]

A made job: tensor parallel 8, 8 stages, the rest data parallel. Each rank has 16 all-gathers and 16
reduce-scatters of its tensor group, 8 transfers to each neighbour stage and 10 reductions of its
data-parallel group: the newest of those that a plugin keeps when it thins operations out to about one of a
kind a step. One rank is late. The best of several rounds counts, because other work on the machine can only
make a round slower.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from perfd.analysis.nccl import nccl
from perfd.analysis.stacks import stacked
from perfd.analysis.summary import AnalysisSettings, summarise
from perfd.analysis.tables import (
    CollectiveTable,
    Floats,
    GpuTable,
    Ints,
    JobData,
    NcclTime,
    PhaseTable,
    StepTable,
)
from perfd.model import JobDescription, ParallelLayout

SCHEMA = "perfd.bench.waiting/1"
TENSOR, STAGES = 8, 8
LATE_RANK = 77
_STEP_S = 1.0
_LATE_S = 0.01
_KEEP = 16


def measure(ranks: int = 16_384, rounds: int = 15) -> dict[str, Any]:
    """Milliseconds of the split alone, of all that follows from it, and of the whole diagnosis."""
    job = made_job(ranks)
    layout = job.description.parallel if job.description else ParallelLayout()
    summary = summarise(job, AnalysisSettings())
    named = [culprit.id for culprit in summary.bottleneck.culprits]
    return {
        "schema": SCHEMA,
        "ranks": ranks,
        "communicators": len(job.collectives),
        "operations": sum(table.durations_s.size for table in job.collectives),
        "split_ms": _best_ms(lambda: stacked(job.collectives, layout), rounds),
        "nccl_ms": _best_ms(lambda: nccl(job, layout), rounds),
        "diagnosis_ms": _best_ms(lambda: summarise(job, AnalysisSettings()), rounds),
        "late_rank_named": named == [LATE_RANK],
    }


def made_job(ranks: int) -> JobData:
    """A job of that many ranks, of which one comes late to everything."""
    random = np.random.default_rng(1)
    data = ranks // (TENSOR * STAGES)
    grid = np.arange(ranks).reshape(STAGES, data, TENSOR)
    late = np.zeros(ranks)
    # Its tensor group is late with it for what the stage does together.
    late[grid[LATE_RANK // (data * TENSOR), (LATE_RANK // TENSOR) % data]] = _LATE_S
    alone = np.where(np.arange(ranks) == LATE_RANK, _LATE_S, 0.0)
    tables = []
    for operation in ("AllGather", "ReduceScatter"):
        tables += _tables(f"tp-{operation}", operation, grid.reshape(-1, TENSOR), 16, alone, random)
    tables += _tables("dp", "ReduceScatter", grid.transpose(0, 2, 1).reshape(-1, data), 10, late, random)
    for first in range(STAGES - 1):
        pairs = np.stack([grid[first].ravel(), grid[first + 1].ravel()], axis=1)
        tables += _tables(f"pp-{first}", "SendRecv", pairs, 8, late, random)
    steps = _steps()
    return JobData(
        name="made",
        now_unix_s=float(steps.time_unix_s[-1]),
        description=JobDescription(
            job="made",
            framework="megatron-lm",
            parallel=ParallelLayout(world_size=ranks, tp=TENSOR, cp=1, pp=STAGES, dp=data),
        ),
        steps=steps,
        phases=PhaseTable(step=steps.step, min_s={}, max_s={}, by_rank_s={}),
        gpu=GpuTable(time_unix_s=np.empty(0), gpus=(), metrics={}),
        collectives=tables,
        nccl=[NcclTime(rank=rank, busy_s=5.0, span_s=10.0, lost_operations=0) for rank in range(ranks)],
    )


def _tables(  # noqa: PLR0917  (a table of tables reads best)
    name: str, operation: str, groups: Ints, operations: int, late_s: Floats, random: np.random.Generator
) -> list[CollectiveTable]:
    arrival = late_s[groups]
    wait = arrival.max(axis=1, keepdims=True) - arrival
    noise = random.random((len(groups), operations, groups.shape[1])) * 1e-5
    durations = 1e-3 + wait[:, None, :] + noise
    # The job runs for a while already, and of 16 operations a step one is kept.
    sequence, size = _KEEP * np.arange(1000, 1000 + operations), np.full(operations, 64e6)
    return [
        CollectiveTable(
            communicator=f"{name}-{index}",
            operation=operation,
            ranks=members,
            sequence=sequence,
            durations_s=durations[index],
            size_bytes=size,
            kernel_ratio=_KEEP * durations[index].mean(axis=0) / _STEP_S,
            operations_per_s=_KEEP / _STEP_S,
        )
        for index, members in enumerate(groups.tolist())
    ]


def _steps() -> StepTable:
    count = 50
    unknown = np.full(count, np.nan)
    return StepTable(
        step=np.arange(1, count + 1),
        time_unix_s=1000 + _STEP_S * np.arange(1, count + 1),
        step_time_s=np.full(count, _STEP_S),
        steps_covered=np.ones(count, dtype=np.int64),
        warmup=np.zeros(count, dtype=np.bool_),
        flops_per_s_per_gpu=unknown,
        tokens_per_s=unknown,
        samples_per_s=unknown,
        global_batch_size=unknown,
        loss=unknown,
    )


def _best_ms(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return 1000 * best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=16_384, help="a multiple of 64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    args = parser.parse_args()
    result = measure(args.ranks, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{result['ranks']} ranks, {result['communicators']} communicators, {result['operations']} durations"
    )
    print(f"split into transfer and waiting  {result['split_ms']:6.1f} ms")
    print(f"and all that follows from it     {result['nccl_ms']:6.1f} ms")
    print(f"the whole diagnosis              {result['diagnosis_ms']:6.1f} ms")
    print(f"the late rank is named           {result['late_rank_named']}")


if __name__ == "__main__":
    main()
