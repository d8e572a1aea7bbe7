"""Leases in a real bucket whose entries are deleted, overwritten or half claimed."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator.group.leases import Leases
from perfd.config import NatsGroupConfig, NatsListenConfig
from tests.support.group_members import seconds_until
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system

PARTITIONS = 3
BUCKET = "perfd-default"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as running:
        yield running


@contextlib.contextmanager
def member(server: NatsServer, address: str = "http://127.0.0.1:1") -> Iterator[Leases]:
    group = NatsGroupConfig(partitions=PARTITIONS, address=address, lease_s=1.0)
    config = NatsListenConfig(servers=(server.address,), cluster="default", group=group)
    leases = Leases(config, group, lambda: None)
    leases.start(address)
    try:
        yield leases
    finally:
        leases.stop()


def held(leases: Leases) -> dict[int, int]:
    """Epochs of the partitions whose lease is valid now."""
    return {number: epoch for number, epoch in leases.mine().items() if leases.held(number, epoch)}


def until_all_held(leases: Leases) -> dict[int, int]:
    seconds_until(lambda: len(held(leases)) == PARTITIONS)
    return leases.mine()


def in_bucket(server: NatsServer, change: Callable[[Any], Any]) -> None:
    async def changed(js: Any) -> None:
        await change(await js.key_value(BUCKET))

    server.ask(changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda bucket: bucket.delete("partition.1"),
        lambda bucket: bucket.purge("partition.1"),
        lambda bucket: bucket.put("partition.1", b""),
        lambda bucket: bucket.put("partition.1", b"[]"),
        lambda bucket: bucket.put("partition.1", b'{"member": "gone", "epoch": "soon"}'),
        lambda bucket: bucket.put("partition.1", b'{"member": ["b"], "partitions": 3}'),
    ],
    ids=["deleted", "purged", "empty", "list", "wrong epoch", "wrong types"],
)
def test_a_lease_that_was_changed_from_outside_is_claimed_anew(
    server: NatsServer, change: Callable[[Any], Any]
) -> None:
    with member(server) as leases:
        before = until_all_held(leases)
        in_bucket(server, change)
        seconds_until(lambda: held(leases).get(1, 0) > before[1])
        # The others are untouched.
        assert {number: epoch for number, epoch in leases.mine().items() if number != 1} == {
            number: epoch for number, epoch in before.items() if number != 1
        }


def test_what_is_no_lease_keeps_no_member_out(server: NatsServer) -> None:
    async def put_all(bucket: Any) -> None:
        for key in ("member.x", "partition.x", "partition.99", "partition.2", "other"):
            await bucket.put(key, b"[1]")

    with member(server) as first:
        until_all_held(first)
        in_bucket(server, put_all)
        with member(server, "http://127.0.0.1:2") as second:
            seconds_until(lambda: bool(held(second)))
            for number in range(PARTITIONS):
                first.released(number)
            seconds_until(lambda: held(first).keys() | held(second).keys() == set(range(PARTITIONS)))
            assert not held(first).keys() & held(second).keys()


@pytest.mark.parametrize("operation", ["create", "update"])
def test_a_claim_whose_answer_is_lost_is_completed(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The server stores the claim, the member hears nothing; an update claims the lease of one that died."""
    from nats.errors import TimeoutError as NatsTimeoutError  # noqa: PLC0415  (with the extra only)
    from nats.js.kv import KeyValue  # noqa: PLC0415

    def dead(bucket: Any) -> Any:
        return bucket.put("partition.1", json.dumps({"member": "dead", "epoch": "1"}).encode())

    if operation == "update":
        with member(server) as first:
            until_all_held(first)
        in_bucket(server, dead)
    stored: list[int] = []
    real = getattr(KeyValue, operation)

    async def half(self: Any, key: str, *args: Any, **kwargs: Any) -> int:
        revision: int = await real(self, key, *args, **kwargs)
        if key == "partition.1" and not stored:
            stored.append(revision)
            raise NatsTimeoutError
        return revision

    monkeypatch.setattr(KeyValue, operation, half)
    with member(server) as leases:
        epochs = until_all_held(leases)
        assert stored
        assert epochs[1] > stored[0]


def test_numbers_are_made_while_no_lease_can_be_renewed_and_not_after_a_pause(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(server) as leases:
        mine = until_all_held(leases)
        server.kill()
        seconds_until(lambda: not held(leases))
        assert all(leases.serves(number, epoch) for number, epoch in mine.items())
        # Whoever was paused did not try to renew, and others may have claimed them.
        monkeypatch.setattr(leases, "_tried_s", float("-inf"))
        monkeypatch.setattr(Leases, "_note_lost", lambda *_: None)
        assert not any(leases.serves(number, epoch) for number, epoch in mine.items())


def test_partitions_that_are_being_given_up_stay_where_they_are_when_none_can_be_claimed(
    server: NatsServer,
) -> None:
    """As when a server of NATS dies while an aggregator that joined is to get its share."""
    with member(server) as first:
        mine = until_all_held(first)
        with member(server, "http://127.0.0.1:2"):
            seconds_until(first.releasing)
            server.kill()
            for number in first.releasing():
                first.released(number)
            seconds_until(lambda: first.mine() == mine)
            assert all(first.serves(number, epoch) for number, epoch in mine.items())


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """An address at which a process is, as that of a member that cannot renew its leases now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("lives", [True, False])
def test_only_a_holder_that_lives_keeps_its_lease_longer_when_the_bucket_can_be_written_again(
    server: NatsServer, lives: bool
) -> None:
    lease = {"member": "slow", "epoch": "1", "partitions": str(PARTITIONS)}
    with member(server) as first:
        until_all_held(first)
    with listening() as its_address:
        address = its_address if lives else "http://127.0.0.1:1"
        value = json.dumps({**lease, "address": address}).encode()

        async def put(bucket: Any) -> None:
            await bucket.put("member.slow", value)
            await bucket.put("partition.1", value)

        in_bucket(server, put)
        began_s = time.monotonic()
        with member(server, "http://127.0.0.1:2") as second:
            # It starts to write now, as after an election; leases last 1 s.
            seconds_until(lambda: 1 in held(second))
            took_s = time.monotonic() - began_s
            assert len(held(second)) == PARTITIONS
    assert took_s > 2.5 or not lives
