"""Which partitions members claim and release, and whether a lease is valid."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.group.sharing import Holding, Wanted, has_lease_time, is_valid, wanted

MEMBERS = [f"m{number}" for number in range(6)]


def settled(partitions: int, members: list[str], holders: dict[int, str]) -> dict[int, str]:
    """The holders once no member wants a change; one member acts per turn."""
    holders = {number: name for number, name in holders.items() if name in members}
    for _ in range(4 * len(members) + partitions):
        for member in members:
            do = wanted(partitions, members, holders, member)
            for number in do.release:
                assert holders.pop(number) == member
            for number in do.claim:
                assert number not in holders
                holders[number] = member
    return holders


@given(
    partitions=st.integers(1, 40),
    members=st.integers(1, 6),
    before=st.dictionaries(st.integers(0, 39), st.sampled_from(MEMBERS)),
)
def test_every_partition_gets_a_holder_and_none_has_two_more_than_another(
    partitions: int, members: int, before: dict[int, str]
) -> None:
    present = MEMBERS[:members]
    before = {number: name for number, name in before.items() if number < partitions}
    found = settled(partitions, present, before)
    assert found.keys() == set(range(partitions))
    counts = Counter(found.values())
    assert max(counts.values()) - min(counts[name] for name in present) <= 1


def test_only_what_must_moves_when_one_joins_or_leaves() -> None:
    alone = settled(8, ["a"], {})
    two = settled(8, ["a", "b"], alone)
    assert sum(two[number] != alone[number] for number in two) == 4
    three = settled(8, ["a", "b", "c"], two)
    assert sum(three[number] != two[number] for number in three) == 2
    without = settled(8, ["a", "c"], three)
    kept = {number: name for number, name in three.items() if name != "b"}
    assert {number: without[number] for number in kept} == kept


def test_partitions_move_one_at_a_time_once_members_are_settled_and_none_is_free() -> None:
    """A partition that moves is not served for a moment, and holds up those that were free."""
    alone = dict.fromkeys(range(6), "a")
    assert wanted(6, ["a", "b", "c"], alone, "a", settled=False) == Wanted()
    assert wanted(6, ["a", "b", "c"], alone, "a") == Wanted(release=[2])
    del alone[2]
    assert wanted(6, ["a", "b", "c"], alone, "a") == Wanted()
    # What is free is claimed by those that have room, at any time.
    assert wanted(6, ["a", "b", "c"], alone, "b", settled=False) == Wanted(claim=[2])


def test_nothing_is_wanted_when_all_have_their_share() -> None:
    holders = {0: "a", 1: "b", 2: "a"}
    assert [wanted(3, ["a", "b"], holders, name) for name in "ab"] == [wanted(0, [], {}, "a")] * 2


def test_a_lease_is_valid_for_its_epoch_until_it_ends() -> None:
    holding = Holding(epoch=7, revision=9, valid_until_s=10.0)
    assert is_valid(holding, 7, 9.99)
    assert not is_valid(holding, 7, 10.0)
    assert not is_valid(holding, 6, 9.99)
    assert not is_valid(None, 7, 0.0)


def test_a_bucket_has_the_time_of_its_leases_though_that_is_no_whole_number_of_nanoseconds() -> None:
    made_s = int(4.1 * 1e9) / 1e9
    assert made_s != 4.1
    assert has_lease_time(made_s, 4.1)
    assert not has_lease_time(4.0, 4.1)
    assert not has_lease_time(None, 4.1)
