"""The states of alerts, one evaluation after the other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.metrics.series import SeriesKey
from perfd.model import AlertState
from perfd.rules.alert_states import AlertBook, External
from perfd.rules.promql.series_keys import EvaluationError
from perfd.rules.rule_model import AlertingRule
from perfd.rules.templates import compile_template

A, B = SeriesKey.of("x", {"i": "a"}), SeriesKey.of("x", {"i": "b"})
PENDING, FIRING = AlertState.PENDING, AlertState.FIRING
INACTIVE, RESOLVED = AlertState.INACTIVE, AlertState.RESOLVED


def book(for_s: float = 0, keep_firing_for_s: float = 0, limit: int = 0, **texts: str) -> AlertBook:
    rule = AlertingRule(
        alert="Down",
        expression="x",
        for_s=for_s,
        keep_firing_for_s=keep_firing_for_s,
        labels={name: compile_template(text) for name, text in texts.items()},
        annotations={"summary": compile_template("{{ $labels.i }} of {{ $labels.__name__ }}: {{ $value }}")},
    )
    return AlertBook(rule, limit=limit, external=External(labels=(("cluster", "c1"),)))


def states(alerts: AlertBook) -> dict[str, AlertState]:
    return {alert.labels["i"]: alert.state for alert in alerts.alerts}


def test_an_alert_without_for_fires_at_once_and_is_resolved_at_once() -> None:
    alerts = book()
    (change,) = alerts.update([(A, 1.0)], 100.0)
    assert change.state == FIRING
    assert (change.active_at_unix_s, change.fired_at_unix_s) == (100.0, 100.0)
    (change,) = alerts.update([], 110.0)
    assert change.state == RESOLVED
    assert change.resolved_at_unix_s == 110.0
    assert alerts.alerts == []


def test_an_alert_is_pending_until_its_expression_has_held_for_long_enough() -> None:
    alerts = book(for_s=10)
    assert [change.state for change in alerts.update([(A, 1.0)], 100.3)] == [PENDING]
    assert alerts.update([(A, 2.0)], 110.299) == []
    assert [change.state for change in alerts.update([(A, 3.0)], 110.3)] == [FIRING]
    assert alerts.alerts[0].value == 3.0


def of_job(**labels: str) -> SeriesKey:
    return SeriesKey.of("x", {"perfd_job": "j", **labels})


def test_an_alert_has_one_start_where_its_jobs_origin_becomes_known_later() -> None:
    alerts = book()
    alerts.update([(of_job(), 1.0)], 100.0)
    for now_unix_s in (110.0, 120.0):
        assert alerts.update([(of_job(cluster="c", user="u"), 2.0)], now_unix_s) == []
        (alert,) = alerts.alerts
        assert (alert.fired_at_unix_s, alert.value) == (100.0, 2.0)
        assert "cluster" not in alert.labels
    (change,) = alerts.update([], 130.0)
    assert (change.state, change.fired_at_unix_s) == (RESOLVED, 100.0)
    # The next one has all labels.
    (change,) = alerts.update([(of_job(cluster="c", user="u"), 1.0)], 140.0)
    assert change.labels["cluster"] == "c"


def test_other_alerts_are_not_taken_for_the_one_that_ends() -> None:
    others = (
        of_job(rank="1"),
        SeriesKey.of("x", {"perfd_job": "k", "cluster": "c"}),
        SeriesKey.of("x", {"cluster": "c"}),
    )
    for other in others:
        alerts = book()
        alerts.update([(of_job(), 1.0)], 100.0)
        assert [one.state for one in alerts.update([(other, 1.0)], 110.0)] == [FIRING, RESOLVED]
    # Both at once are of two jobs.
    alerts = book()
    alerts.update([(of_job(), 1.0)], 100.0)
    assert [one.state for one in alerts.update([(of_job(), 1.0), (of_job(user="u"), 1.0)], 110.0)] == [FIRING]


def test_a_gap_starts_the_waiting_over() -> None:
    alerts = book(for_s=10)
    alerts.update([(A, 1.0)], 0.0)
    (change,) = alerts.update([], 5.0)
    assert change.state == INACTIVE
    alerts.update([(A, 1.0)], 6.0)
    assert alerts.update([(A, 1.0)], 15.0) == []
    assert [change.state for change in alerts.update([(A, 1.0)], 16.0)] == [FIRING]


def test_keep_firing_for_bridges_a_gap_of_an_alert_that_fires_and_of_no_other() -> None:
    alerts = book(for_s=10, keep_firing_for_s=20)
    alerts.update([(A, 1.0)], 0.0)
    alerts.update([(A, 1.0), (B, 1.0)], 10.0)
    assert states(alerts) == {"a": FIRING, "b": PENDING}
    alerts.update([], 15.0)
    assert states(alerts) == {"a": FIRING}
    alerts.update([(A, 1.0)], 30.0)
    alerts.update([], 40.0)
    assert states(alerts) == {"a": FIRING}
    (change,) = alerts.update([], 60.0)
    assert change.state is RESOLVED


def test_labels_of_the_rule_win_over_those_of_the_series_and_empty_ones_go() -> None:
    alerts = book(i="{{ $labels.i }}-{{ $externalLabels.cluster }}", gone="", tier="{{ $value }}")
    alerts.update([(A, 2.5)], 0.0)
    (alert,) = alerts.alerts
    assert alert.labels == {"alertname": "Down", "i": "a-c1", "tier": "2.5"}
    assert alert.annotations == {"summary": "a of x: 2.5"}


def test_two_results_that_make_one_alert_leave_everything_as_it_was() -> None:
    alerts = book(i="same")
    alerts.update([(A, 1.0)], 0.0)
    with pytest.raises(EvaluationError, match="same alert"):
        alerts.update([(A, 1.0), (B, 1.0)], 1.0)
    assert [alert.state for alert in alerts.alerts] == [FIRING]


def test_more_alerts_than_the_limit_are_none() -> None:
    alerts = book(limit=1)
    with pytest.raises(EvaluationError, match="2 alerts; the group's limit per rule is 1"):
        alerts.update([(A, 1.0), (B, 1.0)], 0.0)
    assert alerts.alerts == []


def test_a_clock_that_is_set_back_delays_an_alert_no_longer_than_its_for() -> None:
    alerts = book(for_s=10)
    alerts.update([(A, 1.0)], 1_000_000.0)
    alerts.update([(A, 1.0)], 500.0)
    alerts.update([(A, 1.0)], 510.0)
    assert states(alerts) == {"a": FIRING}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), max_size=40),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_changes_show_every_state(steps: list[tuple[int, bool, bool]], for_s: int, keep_s: int) -> None:
    alerts = book(for_s=for_s, keep_firing_for_s=keep_s)
    reported: dict[str, AlertState] = {}
    now = 0.0
    for wait, a, b in steps:
        now += wait
        before = states(alerts)
        changes = alerts.update([(key, 1.0) for key, there in ((A, a), (B, b)) if there], now)
        for change in changes:
            name = change.labels["i"]
            assert change.state is not before.get(name, INACTIVE)
            reported[name] = change.state
        current = {name: state for name, state in reported.items() if state in {PENDING, FIRING}}
        assert current == states(alerts)
        for alert in alerts.alerts:
            held = now - alert.active_at_unix_s >= for_s
            assert (alert.state is FIRING) == held or alert.state is FIRING
