"""Batches that were published stay until they are stored, and are published again when they seem lost."""

from hypothesis import given
from hypothesis import strategies as st

from perfd.agent.uplink.unstored_batches import Overdue, UnstoredBatches


def published(last: int, *subjects: str) -> UnstoredBatches:
    """A batch a second to all subjects, from second 0 on."""
    batches = UnstoredBatches()
    for sequence in range(1, last + 1):
        batches.published(sequence, subjects or ("a",), float(sequence))
    return batches


def overdue(batches: UnstoredBatches, now_s: float) -> list[Overdue]:
    found = []
    while (one := batches.next_overdue(now_s)) is not None:
        found.append(one)
    return found


def test_a_batch_is_stored_once_all_of_its_subjects_are_and_all_before_it() -> None:
    batches = published(3, "a", "b")
    batches.stored("a", [1, 2, 3])
    assert batches.stored_sequence == 0
    batches.stored("b", [1, 3])
    assert batches.stored_sequence == 1
    batches.stored("b", [2])
    assert (batches.stored_sequence, len(batches)) == (3, 0)


def test_while_nothing_later_is_stored_no_batch_is_taken_for_lost() -> None:
    batches = published(100)
    batches.stored("a", range(1, 50))
    # Readers are away, as while PostgreSQL is: the newest one alone says that the agent is there.
    assert {one.sequence for one in overdue(batches, 700.0)} == {100}


def test_a_gap_before_what_is_stored_is_published_again_to_that_subject_alone() -> None:
    batches = published(10, "a", "b")
    batches.stored("a", [*range(1, 4), *range(5, 11)])
    batches.stored("b", range(1, 11))
    assert overdue(batches, 20.0) == []
    assert overdue(batches, 35.0) == [Overdue(sequence=4, subject="a", number=1)]
    assert overdue(batches, 36.0) == []
    batches.stored("a", [4])
    assert batches.stored_sequence == 10


def test_what_stays_lost_is_published_again_after_ever_longer_waits() -> None:
    batches = published(2)
    batches.stored("a", [2])
    times = [second for second in range(1, 10_000) if overdue(batches, float(second))]
    waits = [later - earlier for earlier, later in zip([1, *times], times, strict=False)]
    assert waits[:6] == [30, 60, 120, 240, 480, 960]
    assert max(waits) <= 3600


def test_a_gap_whose_subject_has_no_later_batch_waits_for_longer() -> None:
    batches = UnstoredBatches()
    batches.published(1, ["old"], 0.0)
    for sequence in range(2, 300):
        batches.published(sequence, ["new"], float(sequence))
        batches.stored("new", [sequence])
    assert overdue(batches, 119.0) == []
    assert overdue(batches, 121.0) == [Overdue(sequence=1, subject="old", number=1)]


def test_what_is_stored_and_published_once_more_is_not_waited_for() -> None:
    batches = published(3)
    batches.stored("a", [1, 2, 3])
    batches.published(2, ["a"], 9.0)
    assert (batches.stored_sequence, len(batches)) == (3, 0)


def test_batches_that_a_full_spool_dropped_hold_up_none() -> None:
    batches = published(5)
    batches.stored("a", [4])
    batches.forget(3)
    assert batches.stored_sequence == 4
    assert overdue(UnstoredBatches(), 1e9) == []


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from("ab")), max_size=80), st.integers(1, 30))
def test_nothing_is_taken_for_stored_before_each_subject_said_so(said: list, last: int) -> None:
    batches = published(last, "a", "b")
    for sequence, subject in said:
        batches.stored(subject, [sequence])
    known = {(sequence, subject) for sequence, subject in said}
    expected = 0
    while expected < last and {(expected + 1, "a"), (expected + 1, "b")} <= known:
        expected += 1
    assert batches.stored_sequence == expected
