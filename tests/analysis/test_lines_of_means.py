"""Lines that are means over several steps, which is all that a log of one GPU shows: fewer say as much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from analysis.jobs import phase_table, step_table

from perfd.analysis.data.analysis_settings import AnalysisSettings
from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData, StepTable
from perfd.analysis.diagnosis import summarise
from perfd.analysis.steps import gpu_activity, leaves_pace, rows_of_pace, steady_rows
from perfd.model import GpuColumn

USUAL_S, LONGER_S = 0.18, 0.24
PERIOD = 5
"""Steps a line."""
WARM_UP, HEALTHY = [0.9], [USUAL_S, 0.181, 0.179, USUAL_S, 0.181, USUAL_S, 0.18, 0.179]


def lines(times_s: Sequence[float], covered: int = PERIOD) -> StepTable:
    count = len(times_s)
    return step_table(
        times_s,
        step=np.arange(1, count + 1) * covered,
        steps_covered=np.full(count, covered, dtype=np.int64),
        time_unix_s=1000 + np.cumsum(np.array(times_s) * covered),
    )


def newest_steady(times_s: Sequence[float], covered: int = PERIOD) -> list[int]:
    """Which of the newest four lines are steady, 1 for the newest."""
    table = lines([*WARM_UP, *HEALTHY, *times_s], covered)
    rows = steady_rows(table, ()).rows
    return [back for back in range(1, 5) if len(table) - back in rows]


@pytest.mark.parametrize(("longer", "steady"), [(1, [2, 3, 4]), (3, [1, 2, 3, 4]), (4, [1, 2, 3, 4])])
def test_three_lines_of_another_length_are_the_new_pace_and_one_is_an_outlier(longer, steady):
    assert newest_steady([LONGER_S] * longer) == steady


def test_lines_of_single_steps_need_more():
    assert newest_steady([LONGER_S] * 3, covered=1) == [4]
    assert newest_steady([LONGER_S] * 3, covered=3) == [4]
    assert newest_steady([LONGER_S] * 3, covered=4) == [1, 2, 3, 4]


def pace(times_s: Sequence[float], covered: int = PERIOD) -> int:
    """How many of the newest lines are of the newest pace."""
    table = lines([*HEALTHY, *times_s], covered)
    return len(rows_of_pace(table, np.arange(len(table))))


@pytest.mark.parametrize("other_s", [LONGER_S, 0.12])
def test_the_newest_pace_begins_where_lines_became_longer_or_shorter(other_s):
    assert pace([other_s] * 5) == 5
    assert pace([other_s] * 5 + HEALTHY[:4]) == 4
    assert pace([USUAL_S] * 5) == 13
    assert pace([other_s]) == 9


def test_a_line_that_leaves_the_pace_is_seen_at_once():
    def leaves(times_s: Sequence[float]) -> bool:
        table = lines([*WARM_UP, *HEALTHY, *times_s])
        return leaves_pace(table, steady_rows(table, ()))

    assert not leaves([])
    assert not leaves([USUAL_S * 1.07])
    assert leaves([USUAL_S * 1.09])
    assert leaves([USUAL_S / 1.09])
    assert not leaves([LONGER_S] * 4)
    assert leaves([LONGER_S] * 4 + [USUAL_S])


def one_gpu(times_s: Sequence[float], idle_from: float, idle_to: float, idle_ratio: float) -> JobData:
    """A sample of one GPU each half second, whose kernels run all the time but between these two times."""
    table = lines(times_s)
    sampled_s = np.arange(1000.25, table.time_unix_s[-1], 0.5)
    idle = (sampled_s > idle_from) & (sampled_s <= idle_to)
    # NVML says of single moments that a kernel runs, or none.
    none = idle & (np.arange(len(sampled_s)) % 10 < 10 * idle_ratio)
    busy = np.where(none, 0.0, 1.0)
    active = np.where(idle, 0.9 * (1 - idle_ratio), 0.9)
    gpu = GpuTable(
        time_unix_s=sampled_s,
        gpus=[GpuKey(node="n", gpu="0", rank=0)],
        metrics={GpuColumn.BUSY: busy[:, None], GpuColumn.SM_ACTIVE: active[:, None]},
    )
    return JobData(
        name="job",
        now_unix_s=float(table.time_unix_s[-1]),
        description=None,
        steps=table,
        phases=phase_table(table, {}),
        gpu=gpu,
    )


def idle_gain(job: JobData) -> float | None:
    summary = summarise(job, AnalysisSettings())
    found = [one for one in summary.findings if one.kind.value == "host_bound"]
    return found[0].gain_ratio if found else None


def test_idle_time_of_a_gpu_is_a_mean_over_moments_at_the_newest_pace_only():
    healthy, slow = [USUAL_S] * 20, [LONGER_S] * 10
    began_s = 1000 + PERIOD * sum(healthy)
    ended_s = began_s + PERIOD * sum(slow)
    always = one_gpu([*healthy, *slow], 1000, ended_s, 0.3)
    assert idle_gain(always) == pytest.approx(0.3, abs=0.08)
    over = one_gpu([*healthy, *slow, *healthy[:8]], began_s, ended_s, 0.3)
    assert idle_gain(over) is None
    just_over = one_gpu([*healthy, *slow, *healthy[:1]], began_s, ended_s, 0.3)
    assert idle_gain(just_over) is None


def test_a_few_long_lines_are_enough_for_samples_of_a_gpu():
    """Four lines of ten steps: too few of them to be usual, but each has many samples."""
    job = one_gpu([0.9, *[0.4] * 4], 1000, 1100, 0.4)
    assert idle_gain(job) == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize(("covered", "usual"), [(20, True), (1, False)])
def test_samples_and_not_lines_say_what_is_usual_of_a_gpu(covered: int, usual: bool) -> None:
    """Two lines hold many samples each, whether NCCL shows their steps or nothing does."""
    table = lines([0.3 * 20 / covered] * 2, covered)
    gpu = one_gpu([1.2] * 2, 0, 0, 0).gpu
    activity = gpu_activity(gpu, table, np.arange(2))
    assert activity.usual(activity.metrics[GpuColumn.BUSY]) is usual
