from pathlib import Path

import numpy as np

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Alert, AlertState
from perfd.rules import RuleEngine, load_rules
from perfd.rules.files.rules_loader import parse_rules
from perfd.rules.files.rules_source import RulesSource
from perfd.rules.promql.compiler import compile_query
from perfd.rules.rule_model import RuleSet


def engine(text: str) -> RuleEngine:
    file = parse_rules(RulesSource("rules.yaml", text))
    assert file.mistakes == ()
    return RuleEngine(RuleSet(groups=file.groups))


def frame(time_s: float, **values: float) -> SeriesFrame:
    return SeriesFrame(time_s, tuple(map(SeriesKey, values)), np.array(list(values.values()), dtype=float))


CHAIN = """
groups:
  - name: chain
    rules:
      - {record: twice, expr: x * 2}
      - {record: more, expr: twice + 1, labels: {kind: k}}
      - {alert: High, expr: more > 10, for: 2s, labels: {severity: page}}
      - {record: alerts, expr: count by (alertstate) (ALERTS)}
      - {record: since, expr: time() - ALERTS_FOR_STATE}
"""


def test_a_rule_sees_what_the_rules_before_it_recorded_at_the_same_instant() -> None:
    rules = engine(CHAIN)
    store = rules.new_store()
    seen = []
    for second in range(5):
        store.append(frame(second, x=5.0 if second else 1.0))
        evaluation = rules.evaluate(store, second)
        seen.append(
            {key: value for key, value in recorded(evaluation.recorded).items() if "since" not in key}
        )
    assert seen[0] == {"twice": 2, "more,k": 3}
    assert seen[1] == {"twice": 10, "more,k": 11, "alerts,pending": 1}
    assert seen[3] == {"twice": 10, "more,k": 11, "alerts,firing": 1}
    assert recorded(evaluation.recorded)["since,High,k,page"] == 3


def recorded(frame: SeriesFrame) -> dict[str, float]:
    return {
        ",".join([key.name, *(value for _, value in key.labels)]): value
        for key, value in zip(frame.keys, frame.values.tolist(), strict=True)
        if not np.isnan(value)
    }


def test_alerts_and_changes_are_those_of_the_rules() -> None:
    rules = engine(CHAIN)
    store = rules.new_store()
    reported: list[tuple[int, AlertState]] = []
    alerts: list[Alert] = []
    for second, x in enumerate([9, 9, 9, 9, 1, 1]):
        store.append(frame(second, x=x))
        evaluation = rules.evaluate(store, second)
        reported.extend((second, change.state) for change in evaluation.changes)
        alerts = list(evaluation.alerts)
    assert reported == [(0, AlertState.PENDING), (2, AlertState.FIRING), (4, AlertState.RESOLVED)]
    assert alerts == []


def test_recorded_keys_stay_the_same_object_while_the_series_do() -> None:
    rules = engine("groups: [{name: g, rules: [{record: a, expr: x}, {record: b, expr: x > 3}]}]")
    store = rules.new_store()
    keys = []
    for second, x in enumerate([1, 5, 1, 5]):
        store.append(frame(second, x=x))
        keys.append(rules.evaluate(store, second).recorded.keys)
    assert all(some is keys[0] for some in keys)


def test_what_was_recorded_does_not_change_with_the_next_frame() -> None:
    rules = engine("groups: [{name: g, interval: 10s, rules: [{record: a, expr: x}]}]")
    store = rules.new_store()
    for x in range(4):
        store.append(frame(0, x=x))
        evaluation = rules.evaluate(store, 0)
    assert recorded(evaluation.recorded) == {"a": 0}


def test_a_group_is_evaluated_at_its_own_interval_and_at_once_after_the_clock_was_set_back() -> None:
    rules = engine("groups: [{name: g, interval: 10s, rules: [{record: a, expr: time()}]}]")
    store = rules.new_store()
    times = [100, 105, 109.9995, 115, 120.5, 50, 55]
    seen = [recorded(rules.evaluate(store, time).recorded)["a"] for time in times]
    assert seen == [100, 100, 110, 110, 120.5, 50, 50]


def test_groups_that_began_at_different_times_come_together_soon() -> None:
    rules = engine("""
groups:
  - {name: often, interval: 5s, rules: [{record: often, expr: time()}]}
  - {name: rarely, interval: 15s, rules: [{record: rarely, expr: time()}]}
""")
    store = rules.new_store()
    rules.evaluate(store, 0)
    rules.evaluate(store, 5)
    # This round is late: from then on the groups would be due at different times.
    rules.evaluate(store, 12)
    seen = [recorded(rules.evaluate(store, time).recorded) for time in range(15, 64)]
    often = sorted({values["often"] for values in seen})
    rarely = sorted({values["rarely"] for values in seen})
    assert set(rarely) <= set(often)
    assert np.diff(rarely).max() <= 15
    assert np.diff(rarely).min() >= 12.5
    assert np.diff(often).max() <= 5
    assert np.diff(often).min() >= 2.5


def test_a_rule_that_fails_does_not_stop_the_others_and_its_alerts_stay() -> None:
    rules = engine("""
groups:
  - name: g
    rules:
      - {alert: Match, expr: x + on () y}
      - {record: fine, expr: count(x)}
""")
    store = rules.new_store()
    y = SeriesKey.of("y")
    x = [SeriesKey.of("x", {"i": i}) for i in "ab"]
    store.append(SeriesFrame(0.0, (x[0], y), np.ones(2)))
    assert [alert.name for alert in rules.evaluate(store, 0.0).alerts] == ["Match"]
    store.append(SeriesFrame(1.0, (*x, y), np.ones(3)))
    evaluation = rules.evaluate(store, 1.0)
    assert [(failure.group, failure.rule) for failure in evaluation.failures] == [("g", "Match")]
    assert [alert.name for alert in evaluation.alerts] == ["Match"]
    assert recorded(evaluation.recorded) == {"fine": 2}


def test_more_series_than_the_limit_are_a_failure() -> None:
    rules = engine("groups: [{name: g, limit: 1, rules: [{record: a, expr: '{__name__=~\"x|y\"}'}]}]")
    store = rules.new_store()
    store.append(frame(0, x=1, y=2))
    assert len(rules.evaluate(store, 0).failures) == 1


def test_a_series_that_a_rule_no_longer_gives_ends() -> None:
    rules = engine("groups: [{name: g, rules: [{record: a, expr: x > 3}, {record: b, expr: a}]}]")
    store = rules.new_store()
    store.append(frame(0, x=5))
    assert recorded(rules.evaluate(store, 0).recorded) == {"a": 5, "b": 5}
    store.append(frame(1, x=1))
    assert recorded(rules.evaluate(store, 1).recorded) == {}


def test_a_store_of_the_engine_has_all_that_its_rules_need(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "groups: [{name: g, rules: [{record: a, expr: 'sum(rate(x[1m] offset 1m)) + y offset 2m'}]}]"
    )
    rules = RuleEngine(load_rules([path]))
    store = rules.new_store()
    for second in range(300):
        store.append(frame(second, x=2.0 * second, y=second))
    assert recorded(rules.evaluate(store, 299).recorded) == {"a": 2 + 179}
    assert compile_query("count_over_time(x[10m])").evaluate(store, 299_000).samples()[0][1] == 121


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("groups: [{name: g, rules: [{record: a, expr: x}]}]")
    assert len(load_rules([path, tmp_path / "." / "rules.yaml"]).groups) == 1
