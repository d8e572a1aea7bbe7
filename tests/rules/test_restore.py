"""Alerts that go on in the engine of a later process."""

import numpy as np
import pytest

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import JOB_LABEL, Alert, AlertState
from perfd.rules import RuleEngine
from perfd.rules.files.rules_loader import parse_rules
from perfd.rules.files.rules_source import RulesSource
from perfd.rules.rule_model import Evaluation, RuleSet

RULES = """
groups:
  - name: g
    rules:
      - {alert: High, expr: x > 10, for: 100s}
      - {alert: Lasting, expr: x > 10, keep_firing_for: 300s}
"""
RANGE = "groups: [{name: g, rules: [{alert: Errors, expr: 'increase(errors[10m]) > 0'}]}]"


class Server:
    """An engine with its store, given one value a call; `again` is the process that follows it."""

    def __init__(self, text: str = RULES) -> None:
        file = parse_rules(RulesSource("/etc/perfd/rules.yaml", text))
        assert file.mistakes == ()
        self.engine = RuleEngine(RuleSet(groups=file.groups))
        self.store = self.engine.new_store()

    def at(self, time_s: float, *, wrong_s: float = 0.0, **values: float) -> Evaluation:
        """An evaluation when the wall clock is wrong by so much."""
        keys = tuple(map(SeriesKey, values))
        self.store.append(SeriesFrame(time_s + wrong_s, keys, np.array(list(values.values()), dtype=float)))
        return self.engine.evaluate(self.store, time_s + wrong_s, time_s)

    def states(self, time_s: float, *, wrong_s: float = 0.0, **values: float) -> dict[str, AlertState]:
        return {alert.name: alert.state for alert in self.at(time_s, wrong_s=wrong_s, **values).alerts}

    def again(
        self, saved_s: float, restored_s: float, text: str = RULES, *, wrong_s: float = 0.0
    ) -> "Server":
        later = Server(text)
        state = self.engine.state(saved_s + wrong_s)
        self.ended = later.engine.restore(state, restored_s + wrong_s, restored_s)
        return later


def alert_of(evaluation: Evaluation, name: str) -> Alert:
    return next(alert for alert in evaluation.alerts if alert.name == name)


def test_a_for_goes_on_without_the_time_of_the_outage() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(80, x=11)
    later = server.again(80, 200)
    assert later.states(201, x=11)["High"] is AlertState.PENDING
    assert later.states(219, x=11)["High"] is AlertState.PENDING
    assert later.states(220, x=11)["High"] is AlertState.FIRING


def test_an_alert_that_fires_goes_on_with_the_time_it_began_and_is_no_news() -> None:
    server = Server()
    before = [server.at(second, x=11) for second in (0, 100)][-1]
    later = server.again(100, 130).at(131, x=11)
    assert later.changes == ()
    assert alert_of(later, "High").fired_at_unix_s == alert_of(before, "High").fired_at_unix_s == 100
    assert alert_of(later, "High").active_at_unix_s == 0


def test_an_alert_waits_a_minute_for_series_to_come_back_and_then_ends() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(100, x=11)
    later = server.again(100, 130)
    assert later.states(131)["High"] is AlertState.FIRING
    assert later.states(189)["High"] is AlertState.FIRING
    last = later.at(190)
    assert [(change.name, change.state) for change in last.changes] == [("High", AlertState.RESOLVED)]
    assert last.changes[0].resolved_at_unix_s == 190


def test_a_pending_alert_does_not_fire_while_its_series_are_away() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(99, x=11)
    later = server.again(99, 100)
    assert later.states(130)["High"] is AlertState.PENDING
    assert later.states(159)["High"] is AlertState.PENDING
    assert "High" not in later.states(160)


def test_keep_firing_for_counts_from_when_the_expression_ceased_to_hold() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(10, x=1)
    later = server.again(10, 100)
    assert later.states(309, x=1)["Lasting"] is AlertState.FIRING
    assert "Lasting" not in later.states(310, x=1)


def test_a_rule_that_looks_back_has_its_range_again_before_its_alert_ends() -> None:
    server = Server(RANGE)
    for second, errors in ((0, 0), (60, 1), (120, 1)):
        server.at(second, errors=errors)
    later = server.again(120, 130, RANGE)
    assert later.states(300, errors=1) == {"Errors": AlertState.FIRING}
    assert later.states(729, errors=1) == {"Errors": AlertState.FIRING}
    assert later.states(730, errors=1) == {}


def test_after_an_hour_away_a_for_starts_over_and_what_fires_still_goes_on() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(99, x=11)
    assert server.again(99, 3701).states(3702, x=11)["High"] is AlertState.PENDING
    assert server.again(99, 3701).states(3703, x=11)["Lasting"] is AlertState.FIRING
    later = server.again(99, 3701)
    later.at(3702, x=11)
    assert later.states(3702 + 99, x=11)["High"] is AlertState.PENDING
    assert later.states(3702 + 100, x=11)["High"] is AlertState.FIRING


def test_the_end_of_an_alert_whose_rule_is_gone_is_reported() -> None:
    server = Server()
    server.at(0, x=11)
    server.again(0, 10, RANGE)
    assert [(change.name, change.state) for change in server.ended] == [
        ("High", AlertState.INACTIVE),
        ("Lasting", AlertState.RESOLVED),
    ]


@pytest.mark.parametrize("text", ["{alert: Same, expr: x > 10, labels: {severity: a}}"])
def test_two_rules_of_one_name_keep_their_own_alerts(text: str) -> None:
    rules = f"groups: [{{name: g, rules: [{text}, {text.replace('a}', 'b}').replace('10', '20')}]}}]"
    server = Server(rules)
    server.at(0, x=15)
    later = server.again(0, 1, rules).at(2, x=15)
    assert [(alert.labels["severity"], alert.fired_at_unix_s) for alert in later.alerts] == [("a", 0)]


def test_a_clock_that_was_set_back_during_the_outage_does_no_harm() -> None:
    server = Server()
    server.at(1000, x=11)
    later = server.again(1000, 500)
    assert later.states(501, x=11)["High"] is AlertState.PENDING
    assert later.states(601, x=11)["High"] is AlertState.FIRING


@pytest.mark.parametrize("step_s", [90, 86_400, -90, -86_400])
def test_a_for_is_not_shorter_or_longer_when_the_clock_steps(step_s: float) -> None:
    server = Server()
    server.at(0, x=11)
    assert server.states(50, x=11)["High"] is AlertState.PENDING
    assert server.states(51, x=11, wrong_s=step_s)["High"] is AlertState.PENDING
    assert server.states(99, x=11, wrong_s=step_s)["High"] is AlertState.PENDING
    assert server.states(100, x=11, wrong_s=step_s)["High"] is AlertState.FIRING


def test_a_clock_that_is_set_right_bit_by_bit_counts_as_one_that_steps() -> None:
    server = Server()
    for second in range(100):
        assert server.states(second, x=11, wrong_s=0.4 * second)["High"] is AlertState.PENDING
    assert server.states(101, x=11, wrong_s=40.4)["High"] is AlertState.FIRING


@pytest.mark.parametrize("step_s", [400, -400])
def test_keep_firing_for_is_not_shorter_or_longer_when_the_clock_steps(step_s: float) -> None:
    server = Server()
    server.at(0, x=11)
    server.at(10, x=1)
    assert server.states(100, x=1, wrong_s=step_s)["Lasting"] is AlertState.FIRING
    assert server.states(309, x=1, wrong_s=step_s)["Lasting"] is AlertState.FIRING
    assert "Lasting" not in server.states(310, x=1, wrong_s=step_s)


def test_a_for_goes_on_after_a_step_of_the_clock_and_a_restart() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(50, x=11, wrong_s=3000)
    later = server.again(50, 60, wrong_s=3000)
    assert later.states(109, x=11, wrong_s=3000)["High"] is AlertState.PENDING
    assert later.states(110, x=11, wrong_s=3000)["High"] is AlertState.FIRING


OF_JOBS = "groups: [{name: g, rules: [{alert: Slow, expr: slow > 10}]}]"


@pytest.mark.parametrize(("job", "lasts_s"), [("silent", 240), ("reported", 60), ("", 60)])
def test_an_alert_of_a_job_that_is_silent_waits_a_minute_since_it_is_reported(job: str, lasts_s: int) -> None:
    key = SeriesKey("slow", ((JOB_LABEL, job),) if job else ())
    server = Server(OF_JOBS)
    server.store.append(SeriesFrame(100.0, (key,), np.array([11.0])))
    server.engine.evaluate(server.store, 100.0, 100.0)
    later = server.again(100, 200, OF_JOBS)

    def fires(time_s: float) -> bool:
        nothing = SeriesFrame(time_s, (), np.zeros(0))
        later.store.append(nothing)
        # From 380 s on agents report this one, too.
        silent = {"silent"} if time_s <= 380 else set()
        return bool(later.engine.evaluate(later.store, time_s, time_s, silent.__contains__).alerts)

    lasted_s = next(second for second in range(1, 1000) if not fires(200.0 + second))
    assert lasted_s == lasts_s


def test_an_alert_of_a_job_that_stays_silent_ends_after_a_quarter_of_an_hour() -> None:
    key = SeriesKey("slow", ((JOB_LABEL, "llm"),))
    server = Server(OF_JOBS)
    server.store.append(SeriesFrame(100.0, (key,), np.array([11.0])))
    server.engine.evaluate(server.store, 100.0, 100.0)
    later = server.again(100, 200, OF_JOBS)

    def fires(time_s: float) -> bool:
        later.store.append(SeriesFrame(time_s, (), np.zeros(0)))
        return bool(later.engine.evaluate(later.store, time_s, time_s, lambda _job: True).alerts)

    lasted_s = next(second for second in range(1, 2000) if not fires(200.0 + second))
    assert lasted_s == 900 + 59


def test_an_alert_that_was_restored_waits_for_its_series_although_the_clock_steps() -> None:
    server = Server()
    server.at(0, x=11)
    server.at(100, x=11)
    later = server.again(100, 130)
    assert later.states(131, wrong_s=3000)["High"] is AlertState.FIRING
    assert later.states(189, wrong_s=3000)["High"] is AlertState.FIRING
    assert "High" not in later.states(190, wrong_s=3000)


def test_an_alert_that_fires_stays_the_same_when_the_clock_steps() -> None:
    server = Server()
    server.at(0, x=11)
    before = alert_of(server.at(100, x=11), "High")
    after = server.at(101, x=11, wrong_s=3000)
    assert after.changes == ()
    assert alert_of(after, "High") == before
