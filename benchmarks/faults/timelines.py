"""Public op-level timelines as jobs to diagnose: ByteDance-Seed/StragglerAnalysis, one parquet file a job.

A row is one operation of one rank: `dp_rank`, `stage`, `step`, `optype`, `duration`, `start_ts` (within the
step), `mb_id`. There is one rank for each data-parallel rank and stage, so the jobs here have tensor
parallelism of one. Needs pyarrow, which nothing but this benchmark uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from perfd.analysis.data.job_data import Floats, GpuTable, Ints, JobData, PhaseTable, StepTable
from perfd.errors import PerfdError
from perfd.model import JobDescription, ParallelLayout
from tests.support.nccl_records import CollectiveTable, NcclTime, stacks_of, times_of

_COMPUTE = ("forward-compute", "backward-compute")
_REDUCE = "grads-reduce-scatter"
_COLLECTIVES = (_REDUCE, "params-all-gather", "layernorm-grads-all-reduce", "optimizer-clip-main-grad")
_TRANSFERS = {"forward": 1, "backward": -1}
"""Direction of the receiver's stage from the sender's."""


class Evidence(StrEnum):
    """What of a timeline the analysis is shown."""

    TIMERS = "timers"
    """Forward and backward time of each rank in each step, as a log with timers by rank has."""
    NCCL = "nccl"
    """Durations of collectives and transfers, as the plugin has."""
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Operations as columns, and the shape of the job."""

    optype: np.ndarray[Any, Any]
    step: Ints
    """Row of the step, from 0."""
    rank: Ints
    micro_batch: Ints
    start_s: Floats
    duration_s: Floats
    steps: Ints
    """Numbers of the steps."""
    stages: int
    pipelines: int

    @property
    def ranks(self) -> int:
        """In Megatron's order: stages are slowest."""
        return self.stages * self.pipelines

    def by_rank(self, optype: str) -> Floats:
        """Steps by ranks: the sum of an operation's durations."""
        chosen = self.optype == optype
        place = self.step[chosen] * self.ranks + self.rank[chosen]
        total = np.bincount(place, self.duration_s[chosen], minlength=len(self.steps) * self.ranks)
        return total.reshape(len(self.steps), self.ranks)

    def by_micro_batch(self, optype: str, rank: int) -> Floats:
        """Durations of one rank's operations, by step and then micro-batch."""
        chosen = np.flatnonzero((self.optype == optype) & (self.rank == rank))
        order = np.lexsort((self.micro_batch[chosen], self.step[chosen]))
        return self.duration_s[chosen[order]]

    def step_time_s(self) -> Floats:
        """From the first operation's start to the last one's end."""
        first = np.full(len(self.steps), np.inf)
        last = np.zeros(len(self.steps))
        np.minimum.at(first, self.step, self.start_s)
        np.maximum.at(last, self.step, self.start_s + self.duration_s)
        return last - first


def read_timeline(path: Path) -> Timeline:
    """Load a parquet file; raises `PerfdError` that says what is missing."""
    try:
        from pyarrow import parquet  # noqa: PLC0415  (only this benchmark needs it)
    except ImportError as error:
        raise PerfdError("Timelines need pyarrow: pip install pyarrow (dependency group `bench`).") from error
    columns: Mapping[str, Any] = parquet.read_table(path).to_pydict()
    steps, step = np.unique(np.asarray(columns["step"]), return_inverse=True)
    stage, pipeline = np.asarray(columns["stage"]), np.asarray(columns["dp_rank"])
    pipelines = int(pipeline.max()) + 1
    return Timeline(
        optype=np.asarray(columns["optype"]),
        step=step.astype(np.int64),
        rank=(stage.astype(np.int64) * pipelines + pipeline),
        micro_batch=np.asarray([-1 if value is None else value for value in columns["mb_id"]]),
        start_s=np.asarray(columns["start_ts"], dtype=np.float64),
        duration_s=np.asarray(columns["duration"], dtype=np.float64),
        steps=steps,
        stages=int(stage.max()) + 1,
        pipelines=pipelines,
    )


def job_of(name: str, timeline: Timeline, evidence: Evidence) -> JobData:
    """What perfd would know of the job with that evidence."""
    times = timeline.step_time_s()
    with_timers = evidence in {Evidence.TIMERS, Evidence.BOTH}
    with_nccl = evidence in {Evidence.NCCL, Evidence.BOTH}
    steps = _steps(times)
    return JobData(
        name=name,
        now_unix_s=float(steps.time_unix_s[-1]),
        description=JobDescription(
            job=name,
            framework="megatron-lm",
            parallel=ParallelLayout(
                world_size=timeline.ranks, tp=1, cp=1, pp=timeline.stages, dp=timeline.pipelines
            ),
        ),
        steps=steps,
        phases=PhaseTable(
            step=steps.step,
            min_s={},
            max_s={},
            by_rank_s={name: timeline.by_rank(name) for name in _COMPUTE} if with_timers else {},
        ),
        gpu=GpuTable(time_unix_s=np.empty(0), gpus=(), metrics={}),
        collectives=stacks_of(
            [*_reductions(timeline, times), *_transfers(timeline, times)] if with_nccl else []
        ),
        nccl=times_of(_kernel_times(timeline, times) if with_nccl else []),
    )


def _steps(times: Floats) -> StepTable:
    unknown = np.full(len(times), np.nan)
    return StepTable(
        # The timelines leave steps out; to the analysis they are one after the other.
        step=np.arange(1, len(times) + 1),
        time_unix_s=1000 + np.cumsum(times),
        step_time_s=times,
        steps_covered=np.ones(len(times), dtype=np.int64),
        warmup=np.zeros(len(times), dtype=np.bool_),
        flops_per_s_per_gpu=unknown,
        tokens_per_s=unknown,
        samples_per_s=unknown,
        global_batch_size=unknown,
        loss=unknown,
        learning_rate=unknown,
    )


def _reductions(timeline: Timeline, times: Floats) -> list[CollectiveTable]:
    durations = timeline.by_rank(_REDUCE)
    tables = []
    for stage in range(timeline.stages):
        ranks = range(stage * timeline.pipelines, (stage + 1) * timeline.pipelines)
        tables.append(_table(f"dp{stage}", "ReduceScatter", ranks, durations[:, ranks], times))
    return tables


def _transfers(timeline: Timeline, times: Floats) -> list[CollectiveTable]:
    tables = []
    for direction, offset in _TRANSFERS.items():
        for sender in range(timeline.ranks):
            receiver = sender + offset * timeline.pipelines
            if not 0 <= receiver < timeline.ranks:
                continue
            sent = timeline.by_micro_batch(f"{direction}-send", sender)
            received = timeline.by_micro_batch(f"{direction}-recv", receiver)
            if len(sent) == len(received):
                both = np.stack([sent, received], axis=1)
                tables.append(_table(f"pp{direction}", "SendRecv", (sender, receiver), both, times))
    return tables


def _table(
    name: str, operation: str, ranks: Sequence[int], durations_s: Floats, times: Floats
) -> CollectiveTable:
    return CollectiveTable(
        communicator=name,
        operation=operation,
        ranks=list(ranks),
        sequence=np.arange(len(durations_s)),
        durations_s=durations_s,
        size_bytes=np.full(len(durations_s), np.nan),
        kernel_ratio=durations_s.sum(axis=0) / times.sum(),
    )


def _kernel_times(timeline: Timeline, times: Floats) -> list[NcclTime]:
    transfers = [f"{direction}-{end}" for direction in _TRANSFERS for end in ("send", "recv")]
    busy = np.sum([timeline.by_rank(name) for name in (*_COLLECTIVES, *transfers)], axis=(0, 1))
    return [
        NcclTime(
            rank=rank,
            busy_s=float(min(busy[rank], times.sum())),
            span_s=float(times.sum()),
            lost_operations=0,
        )
        for rank in range(timeline.ranks)
    ]
