"""Arrays of one job from the state of its nodes."""

import math

import numpy as np
import pytest
from aggregator.support import START_S, fleet, gpus, place, source, step

from perfd.aggregator.state.derived_numbers import job_data
from perfd.model import Event, EventKind, GpuColumn, SampleTable, Scope


def data(made, *, window=None, name="llm"):
    return job_data(made, made.jobs[name], now_unix_s=START_S, now_s=0.0, window_steps=window)


def test_the_samples_of_one_node_keep_their_instants():
    made = fleet()
    made.apply([place(3, 0), *(gpus(time_s, power_w=time_s) for time_s in (10.0, 10.1, 10.2))], source())
    table = data(made).gpu
    assert table.time_unix_s.tolist() == [10.0, 10.1, 10.2]
    assert [(key.node, key.gpu, key.rank) for key in table.gpus] == [("n0", "0", 3)]
    assert table.metrics["power_w"][:, 0] == pytest.approx([10.0, 10.1, 10.2])


def test_gpus_of_other_jobs_are_left_out():
    made = fleet()
    made.apply([gpus(1, count=2, power_w=[1.0, 2.0]), place(0, 0), place(0, 1, job="other")], source())
    assert [key.gpu for key in data(made).gpu.gpus] == ["0"]
    assert data(made, name="other").gpu.metrics["power_w"].tolist() == [[2.0]]


def test_nodes_that_are_read_at_different_moments_share_slots_of_time():
    made = fleet()
    for node, shift in (("n0", 0.0), ("n1", 0.4)):
        tables = [gpus(100 + shift + time_s, power_w=float(time_s)) for time_s in range(20)]
        made.apply([place(0 if node == "n0" else 1, 0), *tables], source(node=node))
    table = data(made).gpu
    assert len(table.time_unix_s) == 20
    np.testing.assert_array_equal(table.metrics["power_w"][:, 0], table.metrics["power_w"][:, 1])


def test_a_metric_that_only_one_node_has_is_nan_on_the_others():
    made = fleet()
    made.apply([place(0, 0), gpus(1, busy_ratio=1.0), gpus(2, busy_ratio=1.0)], source(node="n0"))
    made.apply([place(1, 0), gpus(1, power_w=2.0), gpus(2, power_w=2.0)], source(node="n1"))
    table = data(made).gpu
    assert table.metrics["busy_ratio"][0].tolist()[0] == 1.0
    assert math.isnan(table.metrics["busy_ratio"][0, 1])
    assert table.metrics["power_w"][0, 1] == 2.0


def test_a_node_whose_clock_is_a_day_off_does_not_stretch_time():
    made = fleet()
    for number in range(3):
        shift = 86_400 if number == 2 else 0
        tables = [gpus(shift + time_s, busy_ratio=1.0) for time_s in range(10)]
        made.apply([place(number, 0), *tables], source(node=f"n{number}"))
    table = data(made).gpu
    assert len(table.time_unix_s) <= made.limits.gpu_history_s + 1
    assert not np.isnan(table.metrics["busy_ratio"][:, :2]).any()


def test_the_analysis_reads_well_known_columns_only():
    made = fleet()
    made.apply([place(0, 0), gpus(1, power_w=300.0, fan_speed_ratio=0.5)], source())
    assert set(data(made).gpu.metrics) == {GpuColumn.POWER}


def test_a_window_holds_the_newest_lines_and_what_belongs_to_them():
    made = fleet()
    lines = [step(number, time_s=START_S + number, step_time_s=1.0) for number in range(1, 21)]
    made.apply([place(0, 0), *lines, *(gpus(START_S + t, a=1.0) for t in range(21))], source(now_s=21.0))
    windowed = data(made, window=5)
    assert windowed.steps.step.tolist() == [16, 17, 18, 19, 20]
    assert windowed.gpu.time_unix_s[0] == START_S + 15
    assert len(data(made).gpu.time_unix_s) == 21


def test_samples_after_the_end_of_a_job_are_not_its_own():
    made = fleet()
    end = Event(kind=EventKind.JOB_ENDED, time_unix_ns=5 * 10**9, message="", job="llm")
    made.apply([place(0, 0), step(1), *(gpus(t, a=1.0) for t in range(10)), end], source())
    assert data(made).gpu.time_unix_s.max() == 5.0


def test_a_job_without_gpus_or_steps_has_empty_tables():
    made = fleet()
    made.apply([place(0, 0)], source())
    made.apply([place(1, 0)], source(node="n1"))
    made_data = data(made)
    assert len(made_data.steps) == len(made_data.phases) == 0
    assert made_data.gpu.gpus == ()
    assert {node: len(placed) for node, placed in made_data.placements.items()} == {"n0": 1, "n1": 1}


def nics(**ports):
    """Ports by name (`mlx5_0/1` is given as `mlx5_0`): whether each is up, and bytes a second."""
    up, speed = zip(*ports.values(), strict=True)
    return SampleTable(
        scope=Scope.NIC,
        times_unix_ns=[1] * len(ports),
        entities=[name if name == "eth0" else f"{name}/1" for name in ports],
        columns={"link_up": up, "speed_bytes_per_s": speed},
    )


def test_the_ports_of_a_node_that_are_up_are_added_up():
    made = fleet()
    ports = nics(mlx5_0=(1.0, 5e10), mlx5_1=(1.0, 5e10), mlx5_2=(0.0, 5e10), eth0=(1.0, 1.25e9))
    made.apply([place(0, 0), ports], source(node="n0"))
    made.apply([place(1, 0), nics(eth0=(1.0, 1.25e9))], source(node="n1"))
    assert data(made).ports_bytes_per_s == {"n0": 1e11}


def window_of(made):
    """Seconds after the start of the samples in the live window, and what was refused as too far ahead."""
    times = data(made, window=5).gpu.time_unix_s - START_S
    return times.tolist(), made.counters.rejected["sample_ahead_s"]


@pytest.mark.parametrize(
    ("ahead_s", "window", "refused"),
    [(10.0, [0.0, 1.0, 12.0], 0), (10.001, [0.0, 1.0], 1), (40 * 86_400.0, [0.0, 1.0], 1)],
)
def test_a_sample_far_ahead_of_its_batch_does_not_empty_the_window(ahead_s, window, refused):
    made = fleet()
    made.apply([place(0, 0), gpus(START_S, a=1.0), gpus(START_S + 1, a=1.0)], source(now_s=1.0))
    made.apply([gpus(START_S + 2 + ahead_s, a=1.0)], source(now_s=2.0))
    assert window_of(made) == (pytest.approx(window), refused)


def test_of_a_table_only_the_rows_that_are_too_far_ahead_are_refused():
    made = fleet()
    table = SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[round((START_S + time_s) * 1e9) for time_s in (0.0, 3_600.0)],
        entities=["0", "1"],
        columns={"power_w": [1.0, 2.0]},
    )
    made.apply([place(0, 0), place(1, 1), table], source())
    assert data(made).gpu.metrics["power_w"].tolist() == [[1.0]]
    assert made.counters.rejected["sample_ahead_s"] == 1


@pytest.mark.parametrize("step_s", [11.0, 3_600.0, 40 * 86_400.0])
def test_a_clock_that_is_set_back_leaves_no_samples_ahead(step_s):
    made = fleet()
    wrong = [gpus(START_S + step_s + second, a=1.0) for second in range(40)]
    made.apply([place(0, 0), gpus(START_S, a=1.0)], source())
    for second, table in enumerate(wrong):
        made.apply([table], source(now_s=step_s + second))
    made.apply([gpus(START_S + 41, a=1.0)], source(now_s=41.0))
    times, refused = window_of(made)
    assert times[-1] == pytest.approx(41.0 if step_s > 50 else 50.0, abs=1.0)
    assert refused == 0
    for second in range(42, 200):
        made.apply([gpus(START_S + second, a=1.0)], source(now_s=float(second)))
    assert window_of(made)[0] == pytest.approx([float(second) for second in range(139, 200)])


def test_a_batch_that_fills_a_gap_drops_nothing_of_those_after_it():
    made = fleet()
    made.apply([place(0, 0), gpus(START_S + 100, a=1.0)], source(now_s=100.0))
    made.apply([gpus(START_S + 60, a=1.0)], source(now_s=60.0, late=True))
    assert window_of(made) == ([60.0, 100.0], 0)


def test_a_node_whose_clock_is_always_ahead_keeps_its_samples():
    made = fleet()
    for second in range(3):
        made.apply([place(0, 0), gpus(START_S + 7_200 + second, a=1.0)], source(now_s=7_200.0 + second))
    assert window_of(made) == ([7_200.0, 7_201.0, 7_202.0], 0)
