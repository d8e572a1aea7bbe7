"""Which notifications are sent when: one message per job, repeats, ends, restarts."""

from dataclasses import replace

from exporters.support import alert
from hypothesis import given
from hypothesis import strategies as st

from perfd.config import NotificationsConfig
from perfd.exporters.notifications.notification_groups import NotificationGroups

WAIT_S, INTERVAL_S, REPEAT_S = 30.0, 300.0, 3600.0


def groups(match=None, **options):
    settings = {
        "group_wait_s": WAIT_S,
        "group_interval_s": INTERVAL_S,
        "repeat_interval_s": REPEAT_S,
        "max_alerts": 100,
    }
    return NotificationGroups(NotificationsConfig(**{**settings, **options}), match or {})


def of_job(name, job="llm", **options):
    return alert(name, perfd_job=job, **options)


def sent(tracked, now_s):
    """Send what is due; of each message its job, its new and its known alerts."""
    due = tracked.due(now_s)
    for one in due:
        tracked.mark_sent(one, now_s)
    return [
        (one.group.job or one.group.server, [a.name for a in one.new], [a.name for a in one.known])
        for one in due
    ]


def test_alerts_of_a_job_within_the_wait_come_in_one_message_and_other_jobs_have_their_own():
    tracked = groups()
    first, second, other = of_job("a"), of_job("b", fired=110.0), of_job("c", job="other", fired=110.0)
    tracked.update([first], [first], 100.0)
    tracked.update([second, other], [first, second, other], 110.0)
    assert sent(tracked, 129.9) == []
    assert tracked.waiting == 3
    assert sent(tracked, 130.0) == [("llm", ["a", "b"], [])]
    assert sent(tracked, 140.0) == [("other", ["c"], [])]
    assert sent(tracked, 200.0) == []
    assert tracked.waiting == 0


def test_jobs_of_one_name_in_two_namespaces_and_servers_are_not_grouped():
    tracked = groups()
    alerts = [
        alert("a", perfd_job="llm", namespace="x"),
        alert("a", perfd_job="llm", namespace="y"),
        alert("a", node="n0", server="vllm", job="scrape"),
        alert("a", node="n0"),
    ]
    tracked.update(alerts, alerts, 100.0)
    assert len(sent(tracked, 130.0)) == 4


def test_a_later_alert_waits_for_the_interval_and_its_message_names_what_still_fires():
    tracked = groups()
    first, second = of_job("a"), of_job("b", fired=150.0)
    tracked.update([first], [first], 100.0)
    assert sent(tracked, 130.0)
    tracked.update([second], [first, second], 150.0)
    assert sent(tracked, 429.9) == []
    assert sent(tracked, 430.0) == [("llm", ["b"], ["a"])]


def test_a_message_is_repeated_after_the_interval_while_an_alert_fires():
    tracked = groups()
    firing = of_job("a")
    tracked.update([firing], [firing], 100.0)
    assert sent(tracked, 130.0)
    assert sent(tracked, 130.0 + REPEAT_S - 0.1) == []
    assert sent(tracked, 130.0 + REPEAT_S) == [("llm", [], ["a"])]
    assert sent(tracked, 131.0 + REPEAT_S) == []
    never = groups(repeat_interval_s=None)
    never.update([firing], [firing], 100.0)
    assert sent(never, 130.0)
    assert sent(never, 1e9) == []


def test_the_end_is_sent_once_or_not_at_all():
    for resolved, expected in ((True, [("llm", ["a"], [])]), (False, [])):
        tracked = groups(resolved=resolved)
        firing, over = of_job("a"), of_job("a", resolved=500.0)
        tracked.update([firing], [firing], 100.0)
        assert sent(tracked, 130.0)
        tracked.update([over], [], 500.0)
        assert sent(tracked, 530.0) == expected
        tracked.update([], [], 540.0)
        assert sent(tracked, 1e9) == []


def test_an_alert_that_ended_before_it_was_sent_is_sent_as_ended():
    tracked = groups(resolved=False)
    tracked.update([of_job("a"), of_job("a", resolved=105.0)], [], 105.0)
    [message] = tracked.due(135.0)
    assert [one.firing for one in message.new] == [False]
    tracked.mark_sent(message, 135.0)
    assert sent(tracked, 1e9) == []


def test_one_that_flaps_costs_a_message_per_interval():
    tracked = groups()
    messages = 0
    for start_s in range(100, 2100, 20):
        firing = of_job("a", fired=float(start_s))
        tracked.update([firing], [firing], float(start_s))
        messages += len(sent(tracked, start_s + 5.0))
        over = of_job("a", fired=float(start_s), resolved=start_s + 10.0)
        tracked.update([over], [], start_s + 10.0)
        messages += len(sent(tracked, start_s + 15.0))
    assert messages == 1 + (2000 - WAIT_S) // INTERVAL_S


def test_an_alert_whose_rule_is_gone_ends():
    tracked = groups()
    firing = of_job("a")
    tracked.update([firing], [firing], 100.0)
    assert sent(tracked, 130.0)
    tracked.update([], [], 500.0)
    [message] = tracked.due(530.0)
    assert [(one.firing, one.resolved_at_unix_s) for one in message.new] == [(False, 500.0)]


def test_a_clock_that_was_set_back_keeps_nothing_from_being_sent():
    tracked = groups()
    firing = of_job("a")
    tracked.update([firing], [firing], 5000.0)
    assert sent(tracked, 100.0) == [("llm", ["a"], [])]


def test_what_finds_no_room_is_counted_and_comes_when_there_is_some():
    tracked = groups(max_alerts=1)
    first, second = of_job("a"), of_job("b", job="other")
    assert tracked.update([first, second], [first, second], 100.0) == 1
    assert sent(tracked, 130.0) == [("llm", ["a"], [])]
    tracked.update([of_job("a", resolved=500.0)], [second], 500.0)
    assert sent(tracked, 530.0) == [("llm", ["a"], [])]
    tracked.update([], [second], 531.0)
    assert sent(tracked, 561.0) == [("other", ["b"], [])]


def test_patterns_choose_alerts():
    tracked = groups(match={"severity": "crit*", "namespace": ""})
    alerts = [of_job("a", severity="critical"), of_job("b", severity="warning"), of_job("c")]
    alerts.append(of_job("d", severity="critical", namespace="x"))
    tracked.update(alerts, alerts, 100.0)
    assert sent(tracked, 130.0) == [("llm", ["a"], [])]


def test_a_later_process_sends_what_waits_and_nothing_twice():
    tracked = groups()
    first, second = of_job("a"), of_job("b", job="other", fired=125.0)
    tracked.update([first], [first], 100.0)
    tracked.update([second], [first, second], 125.0)
    assert sent(tracked, 130.0) == [("llm", ["a"], [])]
    later = groups()
    later.restore(tracked.state())
    later.update([], [first, second], 140.0)
    assert sent(later, 140.0) == []
    assert sent(later, 155.0) == [("other", ["b"], [])]
    last = groups()
    last.restore(later.state())
    last.update([], [], 600.0)
    assert sent(last, 630.0) == [("llm", ["a"], []), ("other", ["b"], [])]


RUNS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.integers(1, 400)), max_size=40)


@given(RUNS)
def test_every_firing_is_sent_at_least_once_and_none_twice_as_new(runs):
    tracked = groups(repeat_interval_s=None)
    firing, began, new, now_s = {}, set(), [], 100.0
    for number, starts, restarts, passes_s in runs:
        now_s += passes_s
        changes = []
        if starts and number not in firing:
            firing[number] = of_job(f"a{number}", fired=now_s)
            began.add((number, now_s))
            changes = [firing[number]]
        elif not starts and number in firing:
            over = firing.pop(number)
            changes = [of_job(over.name, fired=over.fired_at_unix_s, resolved=now_s)]
        tracked.update(changes, list(firing.values()), now_s)
        if restarts:
            state, tracked = tracked.state(), groups(repeat_interval_s=None)
            tracked.restore(state)
        for message in tracked.due(now_s):
            new += [(one.name, one.fired_at_unix_s, one.state) for one in message.new]
            tracked.mark_sent(message, now_s)
    for _ in range(2):
        now_s += 1000.0
        tracked.update([], list(firing.values()), now_s)
        for message in tracked.due(now_s):
            new += [(one.name, one.fired_at_unix_s, one.state) for one in message.new]
            tracked.mark_sent(message, now_s)
    assert len(new) == len(set(new))
    # One that fired again before it was sent is sent once, with its newest start.
    newest = {number: max(start for one, start in began if one == number) for number, _ in began}
    reported = {(name, start) for name, start, _ in new}
    assert all((f"a{number}", start) in reported for number, start in newest.items())
    assert tracked.waiting == 0


def test_a_new_value_of_an_alert_is_no_change():
    tracked = groups()
    firing = of_job("a")
    tracked.update([firing], [firing], 100.0)
    tracked.changed = False
    tracked.update([], [replace(firing, value=2.0)], 101.0)
    assert not tracked.changed
    tracked.update([of_job("a", resolved=102.0)], [], 102.0)
    assert tracked.changed
