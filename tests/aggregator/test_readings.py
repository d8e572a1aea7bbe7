"""The newest readings of a node, and the history of its GPUs."""

import math
import tracemalloc

import numpy as np
from aggregator.support import gpus
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.state.gpu_history import GpuHistory
from perfd.aggregator.state.node_samples import NodeSamples, values_of
from perfd.aggregator.state.table_layout import Layout
from perfd.model import SampleTable, Scope


def readings(*tables, entities=8, metrics=8):
    made = NodeSamples(Layout(entities=entities, metrics=metrics))
    refused = 0
    for now_s, table in tables:
        plan = made.layout.plan(table.entities, tuple(table.columns))
        made.update(plan, values_of(table), now_s)
        refused += plan.refused
    return made, refused


def history(*tables, seconds=300.0, rows=1200):
    made = GpuHistory(Layout(entities=8, metrics=8), "abcd", seconds=seconds, rows=rows)
    for table in tables:
        made.append(
            made.layout.plan(table.entities, tuple(table.columns)), table.times_unix_ns, values_of(table)
        )
    return made


def test_the_newest_value_of_each_entity_counts():
    made, _ = readings((0.0, gpus(0, count=2, a=[1.0, 2.0])), (1.0, gpus(1, count=2, a=[3.0, 4.0])))
    assert made.fresh(1.0, 30.0).tolist() == [[3.0], [4.0]]


def test_a_nan_does_not_erase_a_slower_metric():
    made, _ = readings((0.0, gpus(0, a=1.0, b=5.0)), (1.0, gpus(1, a=2.0, b=math.nan)))
    assert made.fresh(1.0, 30.0).tolist() == [[2.0, 5.0]]


def test_a_reading_leaves_when_it_is_old():
    made, _ = readings((0.0, gpus(0, a=1.0)), (1.0, gpus(1, a=1.0)))
    assert made.fresh(31.0, 30.0).tolist() == [[1.0]]
    assert math.isnan(made.fresh(31.1, 30.0)[0, 0])


def test_a_metric_that_has_become_absent_leaves_while_others_stay():
    made, _ = readings(
        (0.0, gpus(0, a=1.0, b=1.0)), *((t, gpus(t, a=1.0, b=math.nan)) for t in map(float, range(1, 40)))
    )
    fresh = made.fresh(39.0, 30.0)
    assert fresh[0, 0] == 1.0
    assert math.isnan(fresh[0, 1])


def test_a_slow_metric_stays_for_three_of_its_own_intervals():
    made, _ = readings((0.0, gpus(0, a=1.0)), (60.0, gpus(60, a=2.0)))
    assert made.fresh(239.0, 30.0).tolist() == [[2.0]]
    assert math.isnan(made.fresh(241.0, 30.0)[0, 0])


def test_several_instants_in_one_table_end_with_the_newest():
    table = SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[0, 0, 10**9, 10**9],
        entities=["0", "1", "0", "1"],
        columns={"a": [1.0, 2.0, 3.0, math.nan]},
    )
    made, _ = readings((0.0, table))
    assert made.fresh(0.0, 30.0).tolist() == [[3.0], [2.0]]


def test_columns_of_two_tables_of_one_batch_are_all_fresh():
    made, _ = readings((5.0, gpus(0, a=1.0)), (5.0, gpus(0, a=1.0, b=2.0)))
    assert made.fresh(5.0, 30.0).tolist() == [[1.0, 2.0]]


def test_names_beyond_the_bounds_or_unfit_for_a_metric_are_refused():
    made, refused = readings(
        (0.0, gpus(0, count=3, **{"ok": 1.0, "with space": 1.0, "Upper": 1.0, "b": 2.0, "c": 3.0})),
        entities=2,
        metrics=2,
    )
    assert made.layout.metrics.known == ("ok", "b")
    assert refused == 4
    assert made.values.shape == (2, 2)


@st.composite
def sweeps(draw):
    """Tables of a few GPUs and metrics in any order, each with a time of its own."""
    tables = []
    for number in range(draw(st.integers(1, 12))):
        entities = draw(st.lists(st.sampled_from("0123"), min_size=1, max_size=4, unique=True))
        metrics = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
        columns = {
            metric: draw(
                st.lists(
                    st.floats(0, 1e6, width=32) | st.just(math.nan),
                    min_size=len(entities),
                    max_size=len(entities),
                )
            )
            for metric in metrics
        }
        tables.append(
            SampleTable(
                scope=Scope.GPU,
                times_unix_ns=[(number + 1) * 10**9] * len(entities),
                entities=entities,
                columns=columns,
            )
        )
    return tables


@given(sweeps())
def test_readings_and_history_agree_with_a_plain_dictionary(tables):
    newest, past = {}, {}
    for table in tables:
        for metric, column in table.columns.items():
            for entity, value in zip(table.entities, column, strict=True):
                past[table.times_unix_ns[0] / 1e9, entity, metric] = value
                if not math.isnan(value):
                    newest[entity, metric] = value
    made, _ = readings(*((float(number), table) for number, table in enumerate(tables)))
    fresh = made.fresh(float(len(tables)), 1e9)
    for row, entity in enumerate(made.layout.entities.known):
        for column, metric in enumerate(made.layout.metrics.known):
            np.testing.assert_equal(fresh[row, column], newest.get((entity, metric), math.nan))
    kept = history(*tables)
    times, data = kept.since(0.0)
    for instant, time_s in enumerate(times):
        for row, entity in enumerate(kept.layout.entities.known):
            for column, metric in enumerate(kept.metrics):
                np.testing.assert_equal(
                    data[instant, row, column], np.float32(past.get((time_s, entity, metric), math.nan))
                )


def test_gpus_read_one_after_the_other_are_one_instant():
    table = SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[0, 1_000_000, 100_000_000, 101_000_000],
        entities=["0", "1", "0", "1"],
        columns={"a": [1.0, 2.0, 3.0, 4.0]},
    )
    times, data = history(table).since(-1.0)
    assert times.tolist() == [0.0, 0.1]
    assert data[:, :, 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_history_is_bounded_in_rows_and_seconds():
    by_rows = history(*(gpus(time_s, a=float(time_s)) for time_s in range(1000)), rows=100, seconds=1e9)
    assert 50 <= len(by_rows) <= 100
    assert by_rows.since(0.0)[0][-1] == 999
    by_time = history(*(gpus(time_s, a=float(time_s)) for time_s in range(1000)), seconds=50.0)
    times, data = by_time.since(0.0)
    assert len(times) <= 80
    assert times.tolist() == data[:, 0, 0].tolist()


def test_a_table_of_too_many_instants_takes_only_the_memory_of_those_that_are_kept():
    made = GpuHistory(Layout(entities=256, metrics=32), "a", seconds=1e9, rows=100)
    names = [chr(ord("a") + place) for place in range(26)]
    wide = SampleTable(
        scope=Scope.GPU, times_unix_ns=[0] * 256, entities=[str(gpu) for gpu in range(256)],
        columns=dict.fromkeys(names, [0.0] * 256),
    )  # fmt: skip
    times = [(1 + second) * 10**9 for second in range(2000)]
    long = SampleTable(
        scope=Scope.GPU, times_unix_ns=times, entities=["0"] * len(times),
        columns={"a": [time_ns / 1e9 for time_ns in times]},
    )  # fmt: skip
    plans = [made.layout.plan(table.entities, tuple(table.columns)) for table in (wide, long)]
    made.append(plans[0], wide.times_unix_ns, values_of(wide))
    tracemalloc.start()
    made.append(plans[1], long.times_unix_ns, values_of(long))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2000 * 256 * 26 * 4 / 5  # a fifth of all instants
    kept, data = made.since(0.0)
    assert kept[-1] == 2000
    assert 50 <= len(kept) <= 100
    assert data[:, 0, 0].tolist() == kept.tolist()


def test_instants_out_of_order_are_given_in_order():
    made = history(gpus(2, a=2.0), gpus(1, a=1.0), gpus(3, a=3.0))
    times, data = made.since(1.5)
    assert times.tolist() == [2.0, 3.0]
    assert data[:, 0, 0].tolist() == [2.0, 3.0]


def test_the_newest_instant_is_the_latest_and_not_the_last_that_came():
    assert history(gpus(9, a=1.0), gpus(3, a=1.0)).newest_unix_s() == 9.0


def test_a_reading_after_a_whole_table_does_not_make_older_ones_fresh():
    whole, one = gpus(0, count=2, a=[1.0, 2.0]), gpus(20, count=1, a=[3.0])
    made, _ = readings((0.0, whole), (20.0, one))
    assert made.fresh(30.0, 30.0).tolist() == [[3.0], [2.0]]
    found = made.fresh(31.0, 30.0)
    assert found[0, 0] == 3.0
    assert math.isnan(found[1, 0])


def test_fresh_readings_stay_as_they_were_when_others_come():
    made, _ = readings((0.0, gpus(0, a=1.0)))
    before = made.fresh(0.0, 30.0)
    table = gpus(1, a=2.0)
    made.update(made.layout.plan(table.entities, tuple(table.columns)), values_of(table), 1.0)
    assert before.tolist() == [[1.0]]
