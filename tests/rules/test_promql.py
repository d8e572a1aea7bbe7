"""Values of expressions, worked out by hand; test_prometheus.py compares many more with a real server."""

import math
from typing import Any

import numpy as np
import pytest

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.instant_vectors import Instant, InstantSelector
from perfd.rules.promql.series_keys import EvaluationError
from perfd.rules.series_store import STALE, SeriesStore

NODES = [SeriesKey.of("load", {"node": node, "gpu": gpu}) for node in "ab" for gpu in "01"]
LIMITS = [SeriesKey.of("limit", {"node": node, "rack": f"r{node}"}) for node in "ab"]


@pytest.fixture
def store() -> SeriesStore:
    """At second t, `load` is t, 2t, 3t and 4t; `limit` is 100 and 200. From 0 to 60 s, each second."""
    store = SeriesStore()
    keys = (*NODES, *LIMITS)
    for second in range(61):
        values = np.array([second, 2 * second, 3 * second, 4 * second, 100, 200], dtype=float)
        store.append(SeriesFrame(float(second), keys, values))
    return store


def results(store: SeriesStore, text: str, time_s: float = 60) -> dict[str, float]:
    samples = compile_query(text).evaluate(store, round(time_s * 1000)).samples()
    found = {
        ",".join([*([key.name] if key.name else []), *(value for _, value in key.labels)]): value
        for key, value in samples
    }
    assert len(found) == len(samples)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('load{node="a"}', {"load,0,a": 60, "load,1,a": 120}),
        ("load offset 10s > 100", {"load,0,b": 150, "load,1,b": 200}),
        ("sum by (node) (load)", {"a": 180, "b": 420}),
        ("max without (gpu, node) (load)", {"": 240}),
        ("quantile(0.5, load)", {"": 150}),
        ("count(load > 100)", {"": 3}),
        ("stdvar(load)", {"": 4500}),
        ("topk(1, load)", {"load,1,b": 240}),
        ("bottomk by (node) (1, load)", {"load,0,a": 60, "load,0,b": 180}),
        ("rate(load[20s])", {"0,a": 1, "1,a": 2, "0,b": 3, "1,b": 4}),
        ("increase(load{node='a'}[10s])", {"0,a": 10, "1,a": 20}),
        ("irate(load{node='a'}[10s])", {"0,a": 1, "1,a": 2}),
        ("deriv(load{node='a'}[30s])", {"0,a": 1, "1,a": 2}),
        ("avg_over_time(limit[1m])", {"a,ra": 100, "b,rb": 200}),
        ("last_over_time(limit[1m])", {"limit,a,ra": 100, "limit,b,rb": 200}),
        ("count_over_time(limit{node='a'}[10s])", {"a,ra": 11}),
        ("quantile_over_time(0.5, load{node='a', gpu='0'}[10s])", {"0,a": 55}),
        ("changes(load{gpu='0'}[10s])", {"0,a": 10, "0,b": 10}),
        ("load{gpu='0'} / on (node) group_left (rack) limit", {"0,a,ra": 0.6, "0,b,rb": 0.9}),
        ("limit * on (node) group_right () load{gpu='0'}", {"0,a": 6000, "0,b": 36000}),
        ("load > on (node) group_left () limit", {"load,1,a": 120, "load,1,b": 240}),
        ("load{gpu='0'} > bool ignoring (gpu, rack) limit", {"a": 0, "b": 0}),
        ("load and on (node) limit > 100", {"load,0,b": 180, "load,1,b": 240}),
        ("load unless on (node) limit{node='a'}", {"load,0,b": 180, "load,1,b": 240}),
        ("load{node='a', gpu='0'} or limit", {"load,0,a": 60, "limit,a,ra": 100, "limit,b,rb": 200}),
        ("clamp(limit, 0, 150)", {"a,ra": 100, "b,rb": 150}),
        ("clamp(limit, 2, 1)", {}),
        ("-limit{node='a'}", {"a,ra": -100}),
        ("100 < limit", {"limit,b,rb": 200}),
        ("abs(limit - 150)", {"a,ra": 50, "b,rb": 50}),
        ("round(limit / 7, 0.5)", {"a,ra": 14.5, "b,rb": 28.5}),
        ("absent(nothing{job='x', node=~'a'})", {"x": 1}),
        ("absent(limit)", {}),
        ("absent_over_time(nothing[5m])", {"": 1}),
        ("vector(scalar(limit{node='a'}) + 1)", {"": 101}),
        ("time()", {"": 60}),
        ("timestamp(limit{node='a'})", {"a,ra": 60}),
        ("label_replace(limit{node='a'}, 'rack', '${1}x', 'rack', 'r(.)')", {"limit,a,ax": 100}),
        ("label_join(limit{node='a'}, 'rack', '-', 'node', 'rack')", {"limit,a,a-ra": 100}),
        ("1 / 0", {"": math.inf}),
        ("2 ^ 3 % 5 == bool 3", {"": 1}),
    ],
)  # fmt: skip
def test_an_expression_has_this_value(store: SeriesStore, text: str, expected: dict[str, float]) -> None:
    assert results(store, text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["load + on (node) limit", "limit + on (node) load", "sum by (node) (load) * on () limit"]
)
def test_an_ambiguous_match_is_an_error(store: SeriesStore, text: str) -> None:
    with pytest.raises(EvaluationError, match="both match"):
        results(store, text)


@pytest.mark.parametrize("operator", ["and", "unless", "or"])
def test_an_ambiguous_match_is_an_error_where_it_does_not_matter(store: SeriesStore, operator: str) -> None:
    """As in Prometheus: otherwise a rule's mistake would show when its alert is needed."""
    for right in ("(limit + on (node) load)", "(limit + on (node) load) > 1", "sum(limit + on (node) load)"):
        with pytest.raises(EvaluationError, match="both match"):
            results(store, f"nothing {operator} {right}")


@pytest.mark.parametrize(
    ("operator", "looked"), [("and", [True, False]), ("unless", [True, False]), ("or", [True, True])]
)
def test_what_cannot_change_a_result_is_not_looked_at(
    store: SeriesStore, operator: str, looked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    with_times = InstantSelector.with_times

    def noted(selector: InstantSelector, at: Instant) -> Any:
        read.append(str(selector.selection.name))
        return with_times(selector, at)

    monkeypatch.setattr(InstantSelector, "with_times", noted)
    found = []
    for left in ("load", "load > 1000"):
        read.clear()
        results(store, f"{left} {operator} on (node) (limit > 1 and 300 >= limit)")
        found.append("limit" in read)
    assert found == looked


def test_two_results_with_the_same_labels_are_an_error(store: SeriesStore) -> None:
    with pytest.raises(EvaluationError, match="same labels"):
        results(store, "label_replace(load, 'gpu', '', 'gpu', '.*')")


def test_a_counter_that_was_reset_has_not_fallen() -> None:
    store = SeriesStore()
    key = SeriesKey.of("events_total")
    for second, value in enumerate([0, 10, 20, 5, 15]):
        store.append(SeriesFrame(10.0 * second, (key,), np.array([float(value)])))
    assert results(store, "increase(events_total[40s])", 40) == pytest.approx({"": 35})
    assert results(store, "resets(events_total[40s])", 40) == {"": 1}


def test_a_rise_is_not_extended_below_zero_nor_far_beyond_the_samples() -> None:
    store = SeriesStore()
    for second, value in enumerate([1.0, 2.0, 3.0]):
        store.append_samples(100 + 10.0 * second, {SeriesKey.of("events_total"): value})
    # By half an interval to the right, and to the left by the 10 s since the counter was zero.
    assert results(store, "increase(events_total[5m])", 200) == pytest.approx({"": 2 * (20 + 10 + 5) / 20})


def test_one_sample_has_no_rate() -> None:
    store = SeriesStore()
    store.append_samples(10, {SeriesKey.of("events_total"): 1.0})
    assert results(store, "rate(events_total[5m])", 10) == {}


def test_ranges_leave_out_gaps_and_ends_of_series() -> None:
    store = SeriesStore()
    a, b = SeriesKey.of("x", {"i": "a"}), SeriesKey.of("x", {"i": "b"})
    store.append_samples(0, {a: 1.0, b: 1.0})
    store.append_samples(10, {b: 2.0})
    store.append_samples(20, {a: float(STALE), b: 3.0})
    store.append_samples(30, {a: math.nan, b: 4.0})
    assert results(store, "count_over_time(x[1m])", 30) == {"a": 2, "b": 4}
    assert results(store, "max_over_time(x[1m])", 30) == {"a": 1, "b": 4}


def test_a_vector_stays_the_same_object_of_keys_while_series_flicker() -> None:
    store = SeriesStore()
    keys = (*NODES, *LIMITS)
    query = compile_query("load / on (node) group_left (rack) (limit > 50)")
    seen = set()
    for second in range(20):
        values = np.array([1, 2, 3, 4, 100.0 if second % 3 else 10.0, 200])
        store.append(SeriesFrame(float(second), keys, values))
        seen.add(id(query.evaluate(store, second * 1000).keys))
    assert len(seen) <= 2
