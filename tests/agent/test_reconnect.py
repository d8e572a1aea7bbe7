from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfd.agent.uplink.reconnect import (
    Connect,
    Lost,
    ReconnectPolicy,
    ReportConnection,
    ReportOutage,
    ReportRecovery,
    Started,
    Stopped,
    Wait,
    WaitOver,
    Welcomed,
)


def policy(random: float = 0.5) -> ReconnectPolicy:
    return ReconnectPolicy(initial_s=1.0, max_s=20.0, random=lambda: random)


def test_it_connects_at_once() -> None:
    assert policy().handle(Started(), 0.0) == (Connect(),)


def test_waits_double_up_to_the_bound_and_are_scattered_over_their_whole_range() -> None:
    def waits(random: float) -> list[float]:
        one = policy(random)
        actions = [action for _ in range(7) for action in one.handle(Lost("refused"), 0.0)]
        return [action.seconds for action in actions if isinstance(action, Wait)]

    assert waits(1.0) == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    assert waits(0.25) == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_an_outage_is_reported_once_and_so_is_its_end() -> None:
    one = policy()
    assert one.handle(Lost("refused"), 10.0) == (ReportOutage("refused"), Wait(0.5))
    assert one.handle(WaitOver(), 10.5) == (Connect(),)
    assert one.handle(Lost("refused"), 10.5) == (Wait(1.0),)
    assert one.handle(Welcomed(), 14.0) == (ReportRecovery(4.0),)
    assert one.handle(Lost("reset"), 99.0) == (ReportOutage("reset"), Wait(0.5))


def test_a_first_connection_is_reported_once_and_is_no_recovery() -> None:
    one = policy()
    one.handle(Started(), 0.0)
    assert one.handle(Welcomed(), 1.0) == (ReportConnection(),)
    assert one.handle(Welcomed(), 2.0) == ()


def test_an_aggregator_that_welcomes_and_drops_is_not_called_without_a_pause() -> None:
    one = policy(1.0)
    waits = []
    for now in range(4):
        one.handle(Welcomed(), float(now))
        waits.extend(action for action in one.handle(Lost("dropped"), now + 0.5) if isinstance(action, Wait))
    assert waits == [Wait(1.0), Wait(2.0), Wait(4.0), Wait(8.0)]


def test_nothing_follows_a_stop() -> None:
    one = policy()
    assert one.handle(Stopped(), 0.0) == ()
    assert one.handle(Lost("refused"), 0.0) == ()
    assert one.handle(WaitOver(), 0.0) == ()


@given(
    events=st.lists(
        st.sampled_from([Started(), Welcomed(), Lost("x"), WaitOver(), Stopped()]), min_size=1, max_size=60
    ),
    random=st.floats(0, 0.999),
)
def test_no_wait_is_ever_negative_or_beyond_the_bound(events: list[object], random: float) -> None:
    one = policy(random)
    for now, event in enumerate(events):
        for action in one.handle(event, float(now)):  # type: ignore[arg-type]
            assert not isinstance(action, Wait) or 0 <= action.seconds <= 20.0
