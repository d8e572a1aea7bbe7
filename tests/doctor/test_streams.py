"""What `perfd doctor` says of the stream that an aggregator reads from NATS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor.test_checks import HEALTHY

from perfd.config import NatsListenConfig
from perfd.doctor import Level
from perfd.doctor.stream_checks import check_stream
from perfd.doctor.stream_facts import ConsumerFacts, StreamFacts
from perfd.doctor.stream_probe import probe_stream
from tests.support.group_members import seconds_until
from tests.support.nats_server import NatsServer, nats_cluster

GOOD = StreamFacts(
    servers="nats://a:4222",
    name="perfd",
    leader="s1",
    replicas=3,
    configured_replicas=3,
    messages=10,
    bytes=1000,
    max_bytes=10_000,
    max_payload_bytes=1 << 20,
    needed_payload_bytes=1_004_096,
    consumers=[ConsumerFacts(name="perfd-default-1", leader="s2", waiting=5)],
)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, Level.OK, "perfd, led by s1: 1.0 kB of 10.0 kB, 10 messages, 3 copies, 1 consumers"),
        ({"exists": False}, Level.OK, "does not exist yet"),
        ({"error": "No NATS server answers."}, Level.FAIL, "nats://a:4222 cannot be used"),
        ({"answers": False}, Level.FAIL, "no leader"),
        ({"behind": ["s3"]}, Level.WARN, "offline or behind: s3"),
        ({"bytes": 8_000}, Level.WARN, "8.0 kB of 10.0 kB"),
        ({"bytes": 10_000}, Level.FAIL, "10.0 kB of 10.0 kB"),
        ({"bytes": 8_000, "max_bytes": -1}, Level.OK, "no limit"),
        ({"loses": ["max_age is 60 s"]}, Level.FAIL, "may lose batches: max_age is 60 s"),
        ({"subjects_missing": True}, Level.FAIL, "does not take what agents publish"),
        ({"replicas": 1}, Level.WARN, "1 servers store the stream"),
        ({"max_payload_bytes": 65_536}, Level.WARN, "Set max_payload of the servers to 1004096"),
        ({"consumers": []}, Level.FAIL, "nothing reads the stream perfd, which holds 10 messages"),
        ({"consumers": [], "messages": 0}, Level.OK, "0 consumers"),
        ({"consumers": [ConsumerFacts(name="c", leader=None)]}, Level.FAIL, "c has no leader"),
        (
            {"consumers": [ConsumerFacts(name="c", leader="s1", waiting=7, delivers=False)]},
            Level.WARN,
            "delivers none of 7 messages",
        ),
        (
            {"consumers": [ConsumerFacts(name="c", leader="s1", unstored=9, most_unstored=9)]},
            Level.FAIL,
            "9 messages are not stored",
        ),
        # The worst comes first.
        ({"behind": ["s3"], "loses": ["x"]}, Level.FAIL, "may lose batches: x (and 1 more)"),
    ],
)
def test_the_worst_of_a_stream_is_named_with_what_to_do(
    changes: dict[str, Any], level: Level, words: str
) -> None:
    found = check_stream(replace(HEALTHY, stream=replace(GOOD, **changes)))
    assert (found.check, found.level) == ("stream", level)
    assert words in f"{found.what} {found.fix}"
    assert found.fix or level is Level.OK


def judged(server: NatsServer, **config: Any) -> tuple[Level, str]:
    listen = NatsListenConfig(servers=[server.address], **config)
    found = check_stream(replace(HEALTHY, stream=probe_stream(listen)))
    return found.level, found.what


async def with_stream(js: Any, **config: Any) -> None:
    from nats.js import api  # noqa: PLC0415  (with the extra only)

    usual = {"retention": api.RetentionPolicy.WORK_QUEUE, "discard": api.DiscardPolicy.NEW}
    await js.add_stream(
        api.StreamConfig(
            **{"name": "perfd", "subjects": ["perfd.from.>"], "max_bytes": 10_000} | usual | config
        )
    )


async def publish(js: Any, count: int = 1, size: int = 100) -> None:
    for _ in range(count):
        await js.publish("perfd.from.default.-.n1", b"x" * size)


@pytest.mark.system
def test_a_real_stream_is_judged_by_what_its_server_says(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        assert judged(server) == (Level.OK, "perfd does not exist yet: the aggregator creates it")
        server.ask(with_stream)
        assert judged(server)[0] is Level.OK
        server.ask(publish)
        assert judged(server) == (Level.FAIL, "nothing reads the stream perfd, which holds 1 messages")

        async def consumer(js: Any) -> None:
            await js.pull_subscribe("perfd.from.>", durable="perfd-default-1", stream="perfd")

        server.ask(consumer)
        level, what = judged(server)
        assert (level, what) == (Level.WARN, "the consumer perfd-default-1 delivers none of 1 messages")
        server.ask(lambda js: publish(js, 8, 1000))
        level, what = judged(server)
        assert level is Level.WARN
        assert "of 10.0 kB" in what

        async def edited(js: Any) -> None:
            found = (await js.stream_info("perfd")).config
            await js.update_stream(replace(found, max_age=600.0))

        server.ask(edited)
        assert judged(server)[0] is Level.FAIL
        assert "may lose batches: max_age is 600 s" in judged(server)[1]
    # Without a server.
    assert judged(server)[0] is Level.FAIL


async def leader(js: Any) -> str:
    found = await js.stream_info("perfd")
    return str(found.cluster.leader)


@pytest.mark.system
@pytest.mark.parametrize("led", [True, False], ids=["the leader is left", "a follower is left"])
def test_a_stream_without_a_leader_is_named(led: bool, tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as servers:
        servers[0].ask(lambda js: with_stream(js, num_replicas=3))
        level, what = judged(servers[0], replicas=3)
        assert (level, "led by s" in what) == (Level.OK, True)
        number = int(servers[0].ask(leader).removeprefix("s"))
        left = servers[number if led else (number + 1) % 3]
        # One of three cannot elect a leader.
        for server in servers:
            if server is not left:
                server.kill()
        # A leader that is alone steps down after some seconds.
        seconds_until(lambda: judged(left, replicas=3)[0] is Level.FAIL)
        assert "no leader" in judged(left, replicas=3)[1]
