"""A partition moves while PostgreSQL is away: what was announced is not announced again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from jetstream.test_group import NODES, config, moves_on, producing, shared, started_alerts

from benchmarks.group_chaos.webhook_receiver import WebhookReceiver
from perfd.aggregator.history.history_rows import RowKind
from perfd.aggregator.history.unstored_rows import unstored
from tests.support.group_members import PARTITIONS, Member, seconds_until
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresCluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_an_alert_is_announced_once_although_its_holder_dies_before_it_is_stored(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(PostgresCluster())
        receiver = stack.enter_context(WebhookReceiver())
        server = stack.enter_context(NatsServer(tmp_path))
        webhook = {"name": "test", "url": receiver.url}
        notifications = {"webhooks": [webhook], "group_wait_s": 0.0, "group_interval_s": 1.0}
        settings = {
            **config(tmp_path, url=cluster.url),
            "exporters": {"notifications": {**notifications, "repeat_interval_s": None}},
        }
        members = [stack.enter_context(Member(tmp_path, [server.address], name, **settings)) for name in "ab"]
        seconds_until(lambda: shared(members) and all(map(_serves_all, members)))
        cluster.stop()
        with producing(tmp_path, server) as nodes:
            seconds_until(lambda: len(receiver.fired) == NODES)
            fired = {job: list(starts) for job, starts in receiver.fired.items()}
            seconds_until(lambda: _kept_alerts(server) == NODES)
            for member in members:
                member.kill()
            cluster.start()
            members[1].start()
            moves_on(members[1], nodes)
        of_all = " + ".join(f"(SELECT count(*) FROM perfd_{n}.alerts)" for n in range(PARTITIONS))
        seconds_until(lambda: cluster.sql(f"SELECT {of_all}") == [(NODES,)])
        assert started_alerts(members[1]) == fired
        assert {job: list(starts) for job, starts in receiver.fired.items()} == fired
        seconds_until(lambda: not _kept_alerts(server))


def _serves_all(member: Member) -> bool:
    found = member.get("/api/v1/fleet")
    return bool(found) and "missing_partitions" not in found


def _kept_alerts(server: NatsServer) -> int:
    """How many alerts are kept in NATS."""

    async def bodies(js: Any) -> list[bytes]:
        from nats.js.errors import NoKeysError  # noqa: PLC0415  (only where the tests run that need it)

        bucket = await js.key_value("perfd-default-unstored")
        with contextlib.suppress(NoKeysError):
            return [(await bucket.get(key)).value or b"" for key in await bucket.keys()]
        return []

    rows = [row for body in server.ask(bodies) for row in unstored(body, None)]
    return sum(kind is RowKind.ALERT for kind, _ in rows)
