"""When exporters try again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from perfd.exporters.backoff import Backoff

seconds = st.floats(0.0, 1e6)


def waits(chances, **bounds):
    """How long is waited after each of several failures in a row."""
    backoff, found = Backoff(**bounds), []
    for chance in chances:
        backoff = backoff.failed(0.0, chance=chance)
        found.append(backoff.next_try_s)
    return found


def test_the_longest_waits_double_up_to_a_bound():
    assert waits([1.0] * 4, initial_s=1.0, max_s=5.0) == [1.0, 2.0, 4.0, 5.0]
    assert waits([0.5] * 4, initial_s=1.0, max_s=5.0) == [0.5, 1.0, 2.0, 2.5]


def test_many_that_failed_at_once_come_back_spread_over_the_whole_wait():
    draws = random.Random(7)
    found = sorted(waits([1.0, 1.0, draws.random()], initial_s=1.0, max_s=60.0)[-1] for _ in range(1000))
    per_second = [sum(second <= one < second + 1 for one in found) for second in range(4)]
    assert sum(per_second) == 1000
    assert min(per_second) > 200


@given(failures=st.integers(0, 10_000), chance=st.floats(0.0, 1.0), asked=st.none() | seconds, now=seconds)
def test_no_wait_is_negative_or_beyond_the_bound_or_shorter_than_asked_for_within_it(
    failures, chance, asked, now
):
    before = Backoff(initial_s=0.5, max_s=30.0, failures=failures)
    after = before.failed(now, chance=chance, at_least_s=asked)
    assert now + min(asked or 0.0, 30.0) <= after.next_try_s <= now + 30.0
    assert after.due(after.next_try_s)


def test_a_success_forgets_the_failures():
    failed = Backoff(initial_s=1.0, max_s=5.0).failed(9.0, chance=1.0)
    assert not failed.due(9.5)
    assert failed.succeeded().due(0.0)
    assert failed.succeeded().failed(0.0, chance=1.0).next_try_s == 1.0
