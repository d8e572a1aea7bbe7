"""Step time and MFU over steps, in few enough points to draw."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.web_api.charts.step_chart import progress_columns
from perfd.analysis.data.job_data import GpuTable, JobData, PhaseTable, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.steps import Efficiency


def table(times: list[float], batch: float = 32.0) -> StepTable:
    count = len(times)
    unknown = np.full(count, np.nan)
    return StepTable(
        step=np.arange(1, count + 1),
        time_unix_s=1e9 + np.cumsum(np.nan_to_num(times)),
        step_time_s=np.array(times, dtype=float),
        steps_covered=np.ones(count, dtype=int),
        warmup=np.zeros(count, dtype=bool),
        flops_per_s_per_gpu=np.full(count, 2e14),
        tokens_per_s=unknown,
        samples_per_s=unknown,
        global_batch_size=np.full(count, batch),
        loss=unknown,
        learning_rate=unknown,
    )


def summary(**changes: Any) -> JobSummary:
    empty = JobData(
        name="llm",
        now_unix_s=0.0,
        description=None,
        steps=table([]),
        phases=PhaseTable(step=np.array([], dtype=int), min_s={}, max_s={}, by_rank_s={}),
        gpu=GpuTable(time_unix_s=np.array([]), gpus=(), metrics={}),
    )
    return replace(summarise(empty, AnalysisSettings()), efficiency=Efficiency(**changes))


def test_mfu_of_a_step_follows_its_samples_per_second() -> None:
    whole = summary(mfu_source="shape", mfu_ratio=0.4, samples_per_s=32.0)

    columns = progress_columns(table([1.0, 2.0]), (), whole, 600)

    assert columns["mfu_ratio"] == pytest.approx([0.4, 0.2])


def test_mfu_of_the_log_is_its_own_figure_by_the_peak() -> None:
    whole = summary(mfu_source="log", mfu_ratio=0.3, peak_flops_per_s=1e15)

    assert progress_columns(table([1.0]), (), whole, 600)["mfu_ratio"] == pytest.approx([0.2])


def test_without_an_mfu_its_column_is_unknown() -> None:
    assert all(
        math.isnan(value) for value in progress_columns(table([1.0, 1.0]), (), summary(), 9)["mfu_ratio"]
    )


def test_a_slow_step_is_not_lost_among_its_neighbours() -> None:
    columns = progress_columns(table([1.0] * 50 + [9.0] + [1.0] * 49), (), summary(), 10)

    assert columns["step"] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert columns["step_time_s"] == [1.0] * 10
    assert columns["step_time_max_s"] == [1.0] * 5 + [9.0] + [1.0] * 4


def test_a_job_without_steps_has_empty_columns() -> None:
    assert set(map(len, progress_columns(table([]), (), summary(), 10).values())) == {0}


@given(
    times=st.lists(st.floats(0.01, 100) | st.just(math.nan), max_size=80),
    points=st.integers(1, 40),
)
def test_columns_are_equally_long_and_never_longer_than_asked(times: list[float], points: int) -> None:
    columns = progress_columns(table(times), (), summary(), points)

    assert columns.pop("phases_s") == {}
    (length,) = set(map(len, columns.values()))
    assert length <= points
    assert not times or columns["step"][-1] == len(times)
