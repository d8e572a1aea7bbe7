"""Servers, aggregators and agents on loopback, any of which can be killed, stopped or paused."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.group_chaos.simulated_agent import PARTITIONS, SimulatedAgent
from benchmarks.group_chaos.webhook_receiver import WebhookReceiver
from perfd.config import ObjectStorageConfig
from perfd.errors import PerfdError
from perfd.model import CaptureState
from perfd.net import ObjectStorage
from tests.objects.object_server import FaultyProxy, credentials, make_bucket, s3_server
from tests.support.group_members import Member, seconds_until
from tests.support.nats_server import NatsServer, nats_cluster
from tests.support.postgres_server import PostgresCluster
from tests.support.services import Service

FINAL = {state.value for state in CaptureState if state.final} | {"partial"}
"""States of a capture that is over."""
SETTLES_WITHIN_S = 240.0
"""Time for all parts to be ready, and for all that was sent to be stored."""
_ALERT = "Started"
ALERT_STEP = 2
"""From which on a job has an alert."""
_RULES = f"""
groups:
  - name: chaos
    rules:
      - alert: {_ALERT}
        expr: perfd_step >= {ALERT_STEP}
"""


@dataclass
class Site:
    """Everything that runs."""

    nats: list[NatsServer]
    members: list[Member]
    postgres: PostgresCluster
    s3: Service
    proxy: FaultyProxy
    storage: ObjectStorage
    agents: list[SimulatedAgent]
    receiver: WebhookReceiver
    batches_per_s: float
    down: set[str] = field(default_factory=set)
    """Parts that do not run now."""
    accepted: set[str] = field(default_factory=set)
    asked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def part_names(self) -> dict[str, list[str]]:
        return {
            "nats": [f"nats{n}" for n in range(len(self.nats))],
            "member": [f"member{n}" for n in range(len(self.members))],
            "postgres": ["postgres"],
            "storage": ["storage"],
            "agent": [f"agent{n}" for n in range(len(self.agents))],
        }

    def begin(self, part: str, chance: Random, how: str | None = None) -> tuple[str, Callable[[], None]]:
        """End or pause a part, if servers by `how`; returns what that is, and what brings the part back."""
        kind, number = part.rstrip("0123456789"), int(part.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
        if kind == "storage":
            if chance.random() < 0.5:
                self.proxy.fault = "full"
                return "full", lambda: setattr(self.proxy, "fault", "")
            self.s3.pause()
            return "pause", self.s3.resume
        if kind == "agent":
            agent = self.agents[number]
            agent.restart()
            return "restart", lambda: None
        one: Any = self.postgres if kind == "postgres" else None
        one = self.nats[number] if kind == "nats" else one
        one = self.members[number] if kind == "member" else one
        how = how or chance.choice(["kill", "kill", "stop", "pause"])
        if how == "pause":
            one.pause()
            return how, one.resume
        if how == "stop":
            # As whoever stops a service, which may wait for one that is stopped too.
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.stop()
        one.kill()
        return how, one.start

    def send_all(self) -> None:
        """Send until the end, in a thread of its own."""
        while not self.over.wait(len(self.agents) / self.batches_per_s):
            for agent in self.agents:
                agent.send()

    def running(self) -> list[Member]:
        return [one for n, one in enumerate(self.members) if f"member{n}" not in self.down]

    def wanted(self, ahead_s: float = 0.0) -> dict[str, int]:
        """By job, the first step that is sent so much later than now."""
        ahead = round(ahead_s * self.batches_per_s / len(self.agents))
        return {agent.job: agent.sent[agent.job] + 1 + ahead for agent in self.agents}

    def answers(self, wanted: dict[str, int], late_s: Callable[[float], None] = lambda _: None) -> bool:
        """Whether one running member knows of these steps or newer ones.

        `late_s` gets how much earlier than now the newest step was sent that the one behind least shows; jobs
        that it does not show, as while their partition moves, are left out.
        """
        sent = {agent.job: agent.sent[agent.job] for agent in self.agents}
        found = [steps for one in self.running() if (steps := _steps(one))]
        behind = [max((sent[job] - steps[job] for job in sent if job in steps), default=0) for steps in found]
        if behind:
            late_s(min(behind) * len(self.agents) / self.batches_per_s)
        return any(all(steps.get(job, 0) >= step for job, step in wanted.items()) for steps in found)

    def leases(self) -> set[tuple[int, int | None]]:
        """Partition and epoch of each lease, as the first member that answers knows them."""
        found = next(filter(None, (one.get("/api/v1/group") for one in self.running())), None)
        return {(one["partition"], one["epoch"]) for one in found["partitions"]} if found else set()

    def holding(self) -> list[str]:
        """Names of the running members that hold partitions, as the first one that answers knows."""
        found = next(filter(None, (one.get("/api/v1/group") for one in self.running())), None)
        held = {(one["address"] or "").rstrip("/") for one in found["partitions"]} if found else ()
        names = [f"member{n}" for n, one in enumerate(self.members) if one.address in held]
        return [name for name in names if name not in self.down]

    def has_healthy_nats(self) -> bool:
        """Whether all servers have all messages."""
        try:
            return all(one.get("/healthz").get("status") == "ok" for one in self.nats)
        except urllib.error.URLError:
            return False

    def recovered(self) -> bool:
        """Whether all members agree on who holds what, and know newer steps."""
        found = [member.holders() for member in self.members]
        return None not in found[0] and found.count(found[0]) == len(found)

    def ask_for_capture(self, chance: Random) -> None:
        """Request a capture of a job, of any member, once."""
        self.asked += 1
        capture_id, job = f"c{self.asked}", chance.choice(self.agents).job
        member = chance.choice(self.running() or self.members)
        body = json.dumps({"job": job, "id": capture_id}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{member.address}/api/v1/captures", body, headers)
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(request, timeout=10) as answer,
        ):
            if answer.status == 202:
                self.accepted.add(capture_id)

    def captures(self) -> list[dict[str, Any]] | None:
        """All captures, as the first member knows them; None if not all partitions answered."""
        found = self.members[0].get("/api/v1/captures")
        return found["captures"] if found and not found.get("missing_partitions") else None

    def has_open_captures(self) -> bool:
        """Whether one that was accepted has no outcome yet."""
        found = self.captures()
        return found is None or any(one["state"] not in FINAL for one in found)

    def is_stored(self, url: str, content: str) -> bool:
        """Whether object storage has this content."""
        try:
            return self.storage.read(self.storage.key_of(url) or "", 1000).decode() == content
        except PerfdError:
            return False

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Of the histories of all partitions; `{}` in the query is the schema of one."""
        for number in range(PARTITIONS):
            if self.postgres.sql(f"SELECT to_regclass('perfd_{number}.alerts')") != [(None,)]:
                yield from self.postgres.sql(query.format(f"perfd_{number}"))

    def count(self, table: str) -> int:
        """Rows of a table in all histories."""
        return sum(one for (one,) in self.rows(f"SELECT count(*) FROM {{}}.{table}"))


@contextlib.contextmanager
def running_site(
    folder: Path, agents: int, members: int, batches_per_s: float, lease_s: float
) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        nats = stack.enter_context(nats_cluster(folder))
        postgres = stack.enter_context(PostgresCluster(settings="max_connections = 200"))
        s3 = stack.enter_context(s3_server(folder))
        make_bucket(s3.url, "traces")
        proxy = stack.enter_context(FaultyProxy(s3.url))
        receiver = stack.enter_context(WebhookReceiver())
        bucket = {
            "url": "s3://traces/chaos",
            "endpoint": proxy.url,
            "credentials_file": str(credentials(folder / "credentials")),
        }
        rules = folder / "rules.yaml"
        rules.write_text(_RULES)
        servers = [one.address for one in nats]
        config = {
            "history": {"url": postgres.url},
            "rules": {"builtin": False, "files": [str(rules)]},
            "capture_profiles": {"default": {"tool": "kineto"}},
            # Reports take most of two cores, and are made by processes of their own.
            "capture_reports": False,
            "object_storage": bucket,
            "exporters": {
                "notifications": {
                    "webhooks": [{"name": "chaos", "url": receiver.url}],
                    "group_wait_s": 0.0,
                    "group_interval_s": 1.0,
                    "repeat_interval_s": None,
                }
            },
        }
        group = [
            stack.enter_context(
                Member(folder, servers, f"m{n}", lease_s=lease_s, partitions=PARTITIONS, replicas=3, **config)
            )
            for n in range(members)
        ]
        storage = ObjectStorage(ObjectStorageConfig(**bucket), key="capture.object_storage")
        fleet = [SimulatedAgent(folder, n, servers, storage) for n in range(agents)]
        site = Site(nats, group, postgres, s3, proxy, storage, fleet, receiver, batches_per_s)
        seconds_until(site.recovered, SETTLES_WITHIN_S)
        sender = threading.Thread(target=site.send_all)
        sender.start()
        try:
            yield site
        finally:
            site.over.set()
            sender.join()
            for agent in fleet:
                agent.close()


def _steps(member: Member) -> dict[str, int]:
    """The newest step of each job that a member's answer has."""
    found = member.get("/api/v1/fleet")
    return {row["name"]: row["step"] or 0 for row in found["jobs"]} if found else {}
