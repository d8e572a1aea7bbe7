import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.rules.label_matchers import Matcher, MatcherSet
from perfd.rules.promql.compiler import compile_query
from perfd.rules.series_store import STALE, Read, SeriesStore

A, B = SeriesKey.of("x", {"i": "a"}), SeriesKey.of("x", {"i": "b"})


def frame(time_s: float, **values: float) -> SeriesFrame:
    keys = tuple(SeriesKey.of("x", {"i": name}) for name in values)
    return SeriesFrame(time_s, keys, np.array(list(values.values()), dtype=float))


def value(store: SeriesStore, time_s: float, text: str = "x") -> dict[str, float]:
    samples = compile_query(text).evaluate(store, round(time_s * 1000)).samples()
    return {key.label("i"): number for key, number in samples}


def test_a_series_that_leaves_the_frame_ends_at_once() -> None:
    store = SeriesStore()
    store.append(frame(0, a=1, b=2))
    store.append(frame(1, a=1))
    assert value(store, 0.5) == {"a": 1, "b": 2}
    assert value(store, 1) == {"a": 1}


def test_a_value_that_is_nan_in_a_frame_is_absent() -> None:
    store = SeriesStore()
    keys = (A, B)
    store.append(SeriesFrame(0, keys, np.array([1.0, 2.0])))
    store.append(SeriesFrame(1, keys, np.array([math.nan, 2.0])))
    assert value(store, 1) == {"b": 2}
    store.append(SeriesFrame(2, keys, np.array([3.0, 2.0])))
    assert value(store, 2) == {"a": 3, "b": 2}


def test_the_last_sample_is_good_for_five_minutes() -> None:
    store = SeriesStore()
    store.append(frame(0, a=1))
    assert value(store, 300) == {"a": 1}
    assert value(store, 300.001) == {}


def test_sources_end_only_their_own_series() -> None:
    store = SeriesStore()
    store.append(frame(0, a=1), source="one")
    store.append(frame(0, b=2), source="two")
    store.append(frame(1, c=3), source="one")
    assert value(store, 1) == {"b": 2, "c": 3}


def test_a_single_sample_leaves_the_others_as_they_are() -> None:
    store = SeriesStore()
    store.append_samples(0, {A: 1.0, B: 2.0})
    store.append_samples(10, {A: 3.0})
    assert value(store, 10) == {"a": 3, "b": 2}
    store.append_samples(20, {B: float(STALE)})
    assert value(store, 20) == {"a": 3}


def test_a_clock_that_is_set_back_forgets_what_was_after_it() -> None:
    store = SeriesStore()
    for second in range(10):
        store.append(frame(second, a=second))
    store.append(frame(4, a=44))
    assert value(store, 9) == {"a": 44}
    assert value(store, 9, "count_over_time(x[1m])") == {"a": 5}


def test_a_store_for_rules_keeps_what_they_read_and_no_longer_than_they_do() -> None:
    reads = (
        Read(MatcherSet([Matcher("__name__", "=", "x"), Matcher("i", "=~", "a|b")]), 0),
        Read(MatcherSet([Matcher("i", "=", "b")]), 5000),
    )
    store = SeriesStore(reads)
    for second in range(100):
        store.append(frame(second, a=second, b=second, c=second))
    assert value(store, 99) == {"a": 99, "b": 99}
    assert value(store, 99, "count_over_time(x[1m])") == {"a": 1, "b": 6}


@pytest.mark.parametrize("order", [1, -1])
def test_each_series_is_kept_as_long_as_the_longest_range_over_it(order: int) -> None:
    name, a, b = Matcher("__name__", "=", "x"), Matcher("i", "=", "a"), Matcher("i", "=~", "a|b")
    reads = [
        Read(MatcherSet([name]), 2000),
        Read(MatcherSet([name, a]), 8000),
        Read(MatcherSet([name, b]), 5000),
        Read(MatcherSet([a]), 1000),
    ]
    store = SeriesStore(reads[::order])
    for second in range(100):
        store.append(frame(second, a=second, b=second, c=second))
    assert value(store, 99, "count_over_time(x[1m])") == {"a": 9, "b": 6, "c": 3}


def test_series_that_come_and_go_do_not_pile_up() -> None:
    store = SeriesStore((Read(MatcherSet([Matcher("__name__", "=", "x")]), 10_000),))
    for second in range(2000):
        store.append(frame(second, steady=1, **{f"s{second}": 2}))
    kept = sum(len(columns) for _, columns in store.select(MatcherSet([Matcher("__name__", "=", "x")])))
    assert kept < 200
    assert value(store, 1999) == {"steady": 1, "s1999": 2}


series_values = st.lists(
    st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.nan), st.just(float(STALE))),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(st.lists(series_values, min_size=1, max_size=4), st.integers(0, 50), st.integers(1, 400))
def test_instants_and_ranges_agree_with_a_plain_list_of_samples(
    columns: list[list[float | None]], at: int, window: int
) -> None:
    store = SeriesStore()
    kept: dict[str, list[tuple[int, float]]] = {}
    for place in range(max(map(len, columns))):
        row = {}
        for number, column in enumerate(columns):
            sample = column[place] if place < len(column) else None
            if sample is not None:
                row[SeriesKey.of("x", {"i": str(number)})] = sample
                kept.setdefault(str(number), []).append((place * 20, sample))
        if row:
            store.append_samples(place * 20, row)
    now = at * 20
    latest = {name: [s for s in samples if now - 300 <= s[0] <= now][-1:] for name, samples in kept.items()}
    expected = {name: found[0][1] for name, found in latest.items() if found and not stale(found[0][1])}
    assert same(value(store, now), expected)
    counts = {
        name: sum(1 for time, sample in samples if now - window <= time <= now and not stale(sample))
        for name, samples in kept.items()
    }
    text = f"count_over_time(x[{window}s])"
    assert value(store, now, text) == {name: count for name, count in counts.items() if count}


def stale(sample: float) -> bool:
    return np.float64(sample).tobytes() == np.float64(STALE).tobytes()


def same(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(
        one[key] == other[key] or (math.isnan(one[key]) and math.isnan(other[key])) for key in one
    )
