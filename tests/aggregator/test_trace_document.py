"""What the aggregator reads of an analysis of traces, and what the live diagnosis makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfd.aggregator.captures.trace_document import TraceDocument
from perfd.analysis.data.job_data import Captured, GpuTable, JobData, PhaseTable, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.model import JobDescription, ParallelLayout, TraceShares
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.diagnosis.trace_json import to_json
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, NCCL, Op, kineto, write_json

LAYOUT = ParallelLayout(world_size=4, tp=2, dp=2, pp=1, cp=1, ep=1, vp=1)
STEP_S = 100e-6


def reduction(start: float, end: float, group: str, ranks: Sequence[int] | None, stream: int) -> Op:
    args: dict[str, Any] = {
        "Collective name": "allreduce",
        "Process Group Name": f"{group}{ranks}",
        "Process Group Description": group,
        "In msg nelems": 4096,
        "dtype": "Float",
    }
    if ranks is not None:
        args["Process Group Ranks"] = str(list(ranks))
    return Op(NCCL, start, end, stream=stream, args=args)


def trace(rank: int, *, with_ranks: bool = True) -> dict[str, Any]:
    """A step of 100 us: tensor groups reduce after computing, data groups beside it."""
    tensor = [rank // 2 * 2, rank // 2 * 2 + 1] if with_ranks else None
    data = [rank % 2, rank % 2 + 2] if with_ranks else None
    operations = [
        Op(COMPUTE, 0, 80),
        reduction(30, 70, "DP", data, stream=20),
        reduction(80, 100, "TP", tensor, stream=21),
    ]
    return kineto(operations, rank=rank, world_size=4)


def document(folder: Path, traces: Sequence[dict[str, Any]]) -> TraceDocument:
    """As the aggregator's own process for traces hands it over."""
    paths = [write_json(folder / f"{rank}.json", one) for rank, one in enumerate(traces)]
    analysis = analyse(read_traces(paths))
    return msgspec.json.decode(msgspec.json.encode(to_json(analysis, diagnose(analysis))), type=TraceDocument)


def shares_of(folder: Path, traces: Sequence[dict[str, Any]]) -> TraceShares:
    shares = document(folder, traces).shares()
    assert shares is not None
    return shares


def live(shares: TraceShares) -> JobSummary:
    """What is said of a job whose log only tells its steps, with a capture of it."""
    count = 20
    unknown = np.full(count, np.nan)
    names = (
        "flops_per_s_per_gpu",
        "tokens_per_s",
        "samples_per_s",
        "global_batch_size",
        "loss",
        "learning_rate",
    )
    steps = StepTable(
        step=np.arange(count),
        time_unix_s=1000 + STEP_S * np.arange(count),
        step_time_s=np.full(count, STEP_S),
        steps_covered=np.ones(count, dtype=np.int64),
        warmup=np.zeros(count, dtype=np.bool_),
        **dict.fromkeys(names, unknown),
    )
    job = JobData(
        name="job",
        now_unix_s=1100.0,
        description=JobDescription(job="job", framework="megatron-lm", parallel=LAYOUT),
        steps=steps,
        phases=PhaseTable(step=steps.step, min_s={}, max_s={}, by_rank_s={}),
        gpu=GpuTable(time_unix_s=np.empty(0), gpus=(), metrics={}),
        captured=Captured(
            capture_id="c1", start_unix_s=1001.0, end_unix_s=1002.0, shares=shares, step_time_s=STEP_S
        ),
    )
    return summarise(job, AnalysisSettings())


def test_traces_show_which_dimension_is_hidden_and_which_is_exposed(tmp_path: Path) -> None:
    shares = shares_of(tmp_path, [trace(rank) for rank in range(4)])

    # The groups of one dimension lie alike, so they are one entry.
    reported = [(one.ranks, one.name, one.communication_ratio, one.exposed_ratio) for one in shares.groups]
    assert reported == [
        ((0, 2), "DP", pytest.approx(0.4), pytest.approx(0)),
        ((0, 1), "TP", pytest.approx(0.2), pytest.approx(0.2)),
    ]
    data, tensor = live(shares).communication.dimensions
    assert (data.group, data.share_ratio, data.exposed_ratio) == ("dp", pytest.approx(0.4), pytest.approx(0))
    assert (tensor.group, tensor.share_ratio) == ("tp", pytest.approx(0.2))
    assert tensor.exposed_ratio == pytest.approx(0.2)
    assert tensor.wait_ratio == pytest.approx(0)
    assert live(shares).communication.exposed_ratio == pytest.approx(0.2)


def test_traces_without_the_ranks_of_groups_show_the_whole_only(tmp_path: Path) -> None:
    shares = shares_of(tmp_path, [trace(rank, with_ranks=False) for rank in range(4)])

    assert shares.groups == ()
    communication = live(shares).communication
    assert communication.exposed_ratio == pytest.approx(0.2)
    assert communication.dimensions == ()


def test_a_rank_without_an_operation_counts_with_no_time_in_it(tmp_path: Path) -> None:
    nothing = kineto([Op(COMPUTE, 0, 100)], rank=1, world_size=2)

    shares = shares_of(tmp_path, [trace(0), nothing])

    assert {one.name: one.communication_ratio for one in shares.groups} == {
        "DP": pytest.approx(0.2),
        "TP": pytest.approx(0.1),
    }


def test_of_very_many_groups_those_that_take_most_are_kept(tmp_path: Path) -> None:
    operations = [reduction(10 * at, 10 * at + 1 + at / 100, "G", [0, at + 1], 7) for at in range(100)]

    shares = shares_of(tmp_path, [kineto(operations, world_size=101)])

    assert len(shares.groups) == 64
    assert shares.groups[0].ranks == (0, 100)


def test_an_analysis_of_a_version_without_exposed_times_by_group_shows_the_whole(tmp_path: Path) -> None:
    reported = document(tmp_path, [trace(rank) for rank in range(4)])
    for rank in reported.ranks:
        rank.collectives = [msgspec.structs.replace(row, exposed_s=None) for row in rank.collectives]

    shares = reported.shares()

    assert shares is not None
    assert (shares.groups, shares.exposed_communication_ratio) == ((), pytest.approx(0.2))
