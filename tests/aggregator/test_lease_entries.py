"""What a member of a group knows of the others' leases."""

from __future__ import annotations

import asyncio
import socket

import pytest

from perfd.aggregator.group.lease_entries import LeaseEntries, lease_value, member_key, partition_key
from perfd.aggregator.group.peers import may_listen
from perfd.aggregator.group.sharing import Holder

LEASE_S = 3.0


def entries() -> LeaseEntries:
    """Those of member `a`, which sees `b` hold partition 4 at 10 s."""
    found = LeaseEntries("a", LEASE_S)
    found.see(member_key("b"), {"address": "http://b"}, 1, 10.0)
    found.see(partition_key(4), {"member": "b", "address": "http://b", "epoch": "2"}, 5, 10.0)
    return found


def test_a_lease_counts_from_when_its_renewal_was_seen() -> None:
    found = entries()
    members, holders = found.valid(12.9, 0.0)
    assert (members, holders[4].member, holders[4].epoch) == ({"b": "http://b"}, "b", 2)
    assert found.valid(13.1, 0.0) == ({}, {})
    # The claim has to name it.
    assert found.revision(partition_key(4)) == 5


def test_leases_do_not_end_while_nobody_can_renew_them() -> None:
    found = entries()
    assert found.valid(20.0, 19.0)[1].keys() == {4}
    # This member was only slow.
    assert found.valid(22.1, 19.0) == ({}, {})


def test_a_holder_that_lives_keeps_its_lease_after_an_election() -> None:
    """It may have to leave its server first, and be slower to write than this member."""
    found = entries()
    found.see(member_key("c"), {"address": "http://c"}, 6, 10.0)
    found.see(partition_key(5), {"member": "c", "address": "http://c", "epoch": "2"}, 7, 10.0)
    assert found.overdue(22.1, 19.0, 19.0) == {"b": "http://b", "c": "http://c"}
    found.gone("c")
    members, holders = found.valid(22.1, 19.0, 19.0)
    assert (members, holders.keys()) == ({"b": "http://b"}, {4})
    assert found.overdue(22.1, 19.0, 19.0) == {"b": "http://b"}
    assert found.valid(28.1, 19.0, 19.0) == ({}, {})
    # Without an election nothing changes for who is alive and does not renew.
    assert found.valid(22.1, 12.0) == ({}, {})


def test_a_process_that_was_started_again_does_not_keep_the_lease_of_the_one_before() -> None:
    found = entries()
    found.see(member_key("b2"), {"address": "http://b"}, 6, 21.0)
    members, holders = found.valid(22.1, 19.0, 19.0)
    assert (members, holders) == ({"b2": "http://b"}, {})


def test_a_holder_at_whose_address_nothing_listens_is_asked_about_early_and_holds_nothing() -> None:
    found = entries()
    assert found.overdue(11.4, 0.0, 0.0) == {}
    assert found.overdue(11.6, 0.0, 0.0) == {"b": "http://b"}
    # This member could not write for a while, and the others neither.
    assert found.overdue(11.6, 10.2, 0.0) == {}
    found.gone("b")
    assert found.valid(11.6, 0.0) == ({}, {})
    assert found.overdue(11.6, 0.0, 0.0) == {}


def test_a_lease_without_an_address_has_its_time() -> None:
    found = LeaseEntries("a", LEASE_S)
    found.see(partition_key(4), lease_value(b""), 5, 10.0)
    found.gone("")
    assert found.valid(12.9, 0.0)[1].keys() == {4}
    assert found.valid(13.1, 0.0)[1] == {}


def test_a_renewal_shows_that_a_member_is_not_gone() -> None:
    found = entries()
    found.gone("b")
    found.see(partition_key(4), {"member": "b", "address": "http://b", "epoch": "2"}, 6, 20.0)
    assert found.valid(23.1, 22.0, 22.0)[1].keys() == {4}


def test_who_lost_a_lease_still_knows_its_next_holder() -> None:
    found = entries()
    found.see(partition_key(5), {"member": "a", "epoch": "7"}, 9, 10.0)
    for number in (4, 5):
        found.forget_own(number)
    # Otherwise it could claim 4, if `b` dies now, only once the server has dropped the key.
    assert found.revision(partition_key(4)) == 5
    assert found.revision(partition_key(5)) is None


@pytest.mark.parametrize(
    "value",
    [
        # Of the first version, in which the revision of the claim was the epoch.
        {"member": "b", "address": "http://b"},
        {"member": "b", "address": "http://b", "partitions": "8", "epoch": "5"},
        {"member": "b", "address": "http://b", "partitions": "8", "epoch": "5", "zone": "of a later version"},
    ],
)
def test_leases_of_other_versions_are_read(value: dict[str, str]) -> None:
    found = LeaseEntries("a", LEASE_S)
    found.see("partition.4", value, 5, 10.0)
    assert found.valid(11.0, 0.0)[1] == {4: Holder(member="b", address="http://b", epoch=5)}
    assert not list(found.divided_otherwise(8))


def test_another_division_of_the_jobs_is_noticed() -> None:
    found = entries()
    found.see(member_key("c"), {"address": "http://c", "partitions": "8"}, 2, 11.0)
    assert [one.value["address"] for one in found.divided_otherwise(6)] == ["http://c"]
    assert not list(found.divided_otherwise(8))


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"{", b"[]", b"null", b"7", b'"b"', b"[" * 100_000, b'{"member": ["b"], "epoch": {}}'],
)
def test_a_lease_that_cannot_be_read_ends_like_any_other(body: bytes) -> None:
    found = LeaseEntries("a", LEASE_S)
    for key in (partition_key(4), member_key("b")):
        found.see(key, lease_value(body), 5, 10.0)
    assert not list(found.divided_otherwise(8))
    # Its holder may not know yet that it was overwritten.
    assert found.valid(11.0, 0.0)[1].keys() == {4}
    assert found.valid(13.1, 0.0)[1] == {}
    assert found.revision(partition_key(4)) == 5


@pytest.mark.parametrize("epoch", ["", "-1", "1.5", "soon", "9" * 5000])
def test_an_epoch_that_is_no_number_is_the_revision(epoch: str) -> None:
    found = LeaseEntries("a", LEASE_S)
    found.see(partition_key(4), {"member": "b", "epoch": epoch}, 5, 10.0)
    assert found.valid(11.0, 0.0)[1][4].epoch == 5


@pytest.mark.parametrize("name", ["", "x", "-1", "4.5", "9" * 5000])
def test_a_key_that_names_no_partition_is_none(name: str) -> None:
    found = LeaseEntries("a", LEASE_S)
    found.see(f"partition.{name}", {"member": "b"}, 5, 10.0)
    assert found.valid(11.0, 0.0) == ({}, {})


def test_an_older_revision_that_arrives_late_renews_nothing() -> None:
    found = entries()
    found.see(partition_key(4), {"member": "c", "epoch": "1"}, 4, 12.9)
    assert found.valid(12.9, 0.0)[1][4].member == "b"
    assert found.valid(13.1, 0.0)[1] == {}
    assert found.revision(partition_key(4)) == 5
    # After the bucket was made anew, revisions begin again.
    found.clear()
    found.see(partition_key(4), {"member": "c", "epoch": "1"}, 1, 14.0)
    assert found.valid(14.0, 0.0)[1][4].member == "c"


@pytest.mark.parametrize(
    ("address", "may"),
    [("http://127.0.0.1:1", False), ("http://perfd.invalid:1", True), ("http://", True), ("nowhere", True)],
)
def test_only_a_refused_connection_shows_that_no_process_is_there(address: str, may: bool) -> None:
    """A member that cannot be reached from here may reach NATS."""
    assert asyncio.run(may_listen(address, 5.0)) == may


def test_who_listens_may_renew() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert asyncio.run(may_listen(f"http://127.0.0.1:{server.getsockname()[1]}", 5.0))


def test_a_renewal_that_is_seen_late_counts_from_a_later_write_of_ones_own() -> None:
    """As where changes arrive late, or a claim that failed shows the newest renewal."""
    found = entries()
    found.wrote(3, 9.0)
    found.wrote(7, 10.5)
    renewed = {"member": "b", "address": "http://b", "epoch": "2"}
    found.see(partition_key(4), renewed, 6, 12.9)
    assert found.valid(13.4, 0.0)[1].keys() == {4}
    assert found.valid(13.6, 0.0)[1] == {}
    assert found.revision(partition_key(4)) == 6
    # Nothing is known of what is newer than one's own writes.
    found.see(partition_key(4), renewed, 8, 12.9)
    assert found.valid(15.8, 0.0)[1].keys() == {4}
    # A bucket that was made anew counts anew.
    found.wrote(1, 13.0)
    found.see(partition_key(5), renewed, 2, 13.2)
    assert found.valid(16.1, 0.0)[1].keys() == {5}


def test_who_was_found_dead_is_not_alive_because_of_an_earlier_renewal_that_is_seen_late() -> None:
    found = entries()
    found.wrote(7, 10.5)
    found.gone("b")
    renewed = {"member": "b", "address": "http://b", "epoch": "2"}
    found.see(partition_key(4), renewed, 6, 11.9)
    assert found.valid(12.0, 0.0) == ({}, {})
    found.see(partition_key(4), renewed, 8, 12.0)
    assert found.valid(12.0, 0.0)[1].keys() == {4}
