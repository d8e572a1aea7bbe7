"""Tables of a node that wait are taken as if each had been taken when it came."""

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.node_samples import NodeReadings
from perfd.model import ColumnBlock, GpuColumn, SampleTable, Scope

_GPUS = ("0", "1")
_NAMES = (GpuColumn.TENSOR_ACTIVE.value, GpuColumn.POWER.value, "other_ratio")
_LIMITS = Limits(gpu_history_rows=40, gpu_history_s=30.0)
_S = 1_000_000_000


def table(time_ns, values, *, apart_ns=0, scope=Scope.GPU, names=_NAMES, gpus=_GPUS):
    numbers = array("d", [value + 10 * row for value in values for row in range(len(gpus))])
    times = array("q", [time_ns + apart_ns * row for row in range(len(gpus))])
    columns = ColumnBlock(names, numbers.tobytes(), len(gpus))
    return SampleTable(scope=scope, times_unix_ns=times, entities=gpus, columns=columns)


def shown(readings, now_s):
    times, data = readings.gpu_history.since(-math.inf)
    return (
        {scope: (one.values.tolist(), one.fresh(now_s, 5.0).tolist()) for scope, one in readings.items()},
        readings.gpu_history.metrics,
        times.tolist(),
        data.tolist(),
        readings.gpu_history.newest_unix_s(),
        readings.gpu_tables,
    )


_value = st.one_of(st.floats(0, 9, width=32), st.just(math.nan), st.just(1e300))
_come = st.tuples(
    st.just("table"),
    st.sampled_from([1.0, 1.0, 1.0, 0.0, -3.0]),
    st.sampled_from([1.0, 1.0, 0.0]),
    st.lists(_value, min_size=3, max_size=3),
    st.sampled_from([0, 0, 10_000_000, 80_000_000]),
)
_narrow = st.tuples(st.just("narrow"), st.floats(0, 9, width=32))
_drop = st.tuples(st.just("drop"), st.sampled_from([-4.0, 0.0, 1.0]))


@given(st.lists(st.one_of(_come, _come, _come, _narrow, _drop), max_size=40))
def test_what_waits_is_as_if_taken_at_once(events):
    waits, at_once = (NodeReadings(_LIMITS, AggregatorCounters()) for _ in range(2))
    time_ns, now_s = 1_000 * _S, 50.0
    for kind, *rest in events:
        if kind == "table":
            ahead_s, later_s, values, apart_ns = rest
            time_ns, now_s = time_ns + round(ahead_s * _S), now_s + later_s
            came = table(time_ns, values, apart_ns=apart_ns)
        elif kind == "narrow":
            came = table(time_ns, rest, names=_NAMES[:1], gpus=_GPUS[:1])
        for readings in (waits, at_once):
            if kind == "drop":
                readings.drop_gpus_after(time_ns + round(rest[0] * _S))
            else:
                readings.take(came, now_s)
        shown(at_once, now_s)
    np.testing.assert_equal(shown(waits, now_s + 1.0), shown(at_once, now_s + 1.0))
    assert waits._counters.samples == at_once._counters.samples


@pytest.mark.parametrize("scope", [Scope.GPU, Scope.NODE])
def test_few_tables_wait(scope):
    readings = NodeReadings(_LIMITS, AggregatorCounters())
    for second in range(30):
        readings.take(table(second * _S, [1.0, 2.0, 3.0], scope=scope), float(second))
        assert len(readings._waiting.get(scope, ())) < 8
    assert readings[scope].values.tolist() == [[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]]
    assert not readings._waiting[scope]


@pytest.mark.parametrize("waits", [True, False])
def test_sweeps_of_one_batch_are_as_those_of_a_joined_table_and_cost_no_more_than_others(waits):
    names = _NAMES[:2]
    apart, joined = (NodeReadings(_LIMITS, AggregatorCounters()) for _ in range(2))
    for batch in range(3):
        now_s = 50.0 + 2 * batch
        times_ns = [(2 * batch + sweep) * _S for sweep in range(2)]
        for time_ns in times_ns:
            apart.take(table(time_ns, [time_ns / _S, 1.0], names=names), now_s)
            if not waits:
                shown(apart, now_s)
        numbers = array("d", [v + 10 * row for v in (0, 1) for _ in times_ns for row in range(2)])
        values = np.array(numbers).reshape(2, 2, 2)
        values[0] += np.array(times_ns)[:, None] / _S
        joined.take(
            SampleTable(
                scope=Scope.GPU,
                times_unix_ns=array("q", np.repeat(times_ns, 2)),
                entities=_GPUS * 2,
                columns=ColumnBlock(names, values.tobytes(), 4),
            ),
            now_s,
        )
    now_s += 1.0
    of_apart, of_joined = shown(apart, now_s), shown(joined, now_s)
    np.testing.assert_equal(of_apart[:-1], of_joined[:-1])
    # One time of all values, not one of each.
    assert isinstance(apart[Scope.GPU]._seen_s, float)
    np.testing.assert_equal(apart[Scope.GPU]._period_s, 2.0)
