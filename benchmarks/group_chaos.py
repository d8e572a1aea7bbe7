"""A group of aggregators on real servers, parts of which are killed, stopped and paused at random.

    python -m benchmarks.group_chaos [--faults 200] [--seconds S] [--agents 6] [--members 3]
        [--batches-per-s 30] [--lease-s 3] [--seed 1] [--only nats member postgres storage agent]
        [--postgres-away-s SECONDS] [--json]

Three nats-servers with replicated streams, three aggregators, PostgreSQL, an S3 server (moto's) behind a
proxy, and agents' real spools and uplinks, all on loopback. Each fault ends one or two of them at once, while
agents send, begin new jobs, and answer captures. At the end, without faults:

- each batch that an agent sent is in PostgreSQL, once;
- each job's alert is there once, and was announced to a webhook; copies of a message, and alerts that fired
  again, are counted apart;
- each capture that was accepted has an outcome, and its file is in object storage if it is said to be.

Needs nats-server, PostgreSQL, and moto in the folder PERFD_SERVICES.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool import Spool
from perfd.agent.uplink.nats_uplink import NatsUplink
from perfd.capture.object_keys import file_key
from perfd.clock import SystemClock
from perfd.config import NatsUplinkConfig, ObjectStorageConfig, UplinkConfig
from perfd.errors import PerfdError
from perfd.model import (
    CaptureCancel,
    CaptureFile,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    JobOrigin,
    RankPlacement,
    Record,
    TrainingStep,
)
from perfd.net import ObjectStorage
from tests.objects.object_server import FaultyProxy, credentials, make_bucket, s3_server
from tests.support.group_members import Member, seconds_until
from tests.support.nats_server import NatsServer, nats_cluster
from tests.support.postgres_server import PostgresCluster
from tests.support.services import Service

SCHEMA = "perfd.bench.group_chaos/1"
PARTITIONS = 6
_ALERT = "Started"
_RULES = f"""
groups:
  - name: chaos
    rules:
      - alert: {_ALERT}
        expr: perfd_step >= 2
"""
_FINAL = {state.value for state in CaptureState if state.final} | {"partial"}
_NEW_JOB_EVERY = 5
"""Faults from one job of an agent to its next."""
_SETTLES_WITHIN_S = 240.0
_RECOVERS_WITHIN_S = 180.0
_TWO_AT_ONCE = 1 / 3
_AT_ONCE_AGAIN = 0.25
"""The share of faults that begin before the one before is over."""


@dataclass(kw_only=True)
class Outcome:
    """What became of everything that agents sent and people asked for."""

    faults: dict[str, int] = field(default_factory=dict)
    pairs: int = 0
    """Faults of two parts at once."""
    sent: int = 0
    stored: int = 0
    missing: int = 0
    """Acknowledged, and in no history."""
    twice: int = 0
    jobs: int = 0
    alerts: int = 0
    alerts_lost: int = 0
    alerts_twice: int = 0
    announced: int = 0
    """Jobs whose alert the webhook got."""
    copies: int = 0
    """Announcements of a start that the webhook had: a receiver drops them by their `id`."""
    fired_again: int = 0
    """Further starts of an alert that were announced."""
    postgres_away_moves: int = 0
    """Partitions that had a new lease at the end of the time without PostgreSQL."""
    captures: int = 0
    """Accepted requests."""
    capture_states: dict[str, int] = field(default_factory=dict)
    captures_undefined: int = 0
    """Accepted, and unknown or without an outcome."""
    files_missing: int = 0
    """Said to be in object storage, and not there."""
    member_kill_s: list[float] = field(default_factory=list)
    """From the kill of one aggregator alone until all jobs answer with newer steps."""
    nats_loss_s: list[float] = field(default_factory=list)
    """The same for one of the NATS servers."""
    overdue: int = 0
    """Faults after which not all jobs had newer steps within three minutes; the run goes on."""
    nats_loss_moves: int = 0
    """Partitions that changed their holder then."""
    load_average: float = 0.0

    @property
    def failures(self) -> int:
        """What must be zero."""
        return (
            self.missing
            + self.twice
            + self.alerts_lost
            + self.alerts_twice
            + self.captures_undefined
            + self.files_missing
            + (self.jobs - self.announced)
        )


class _Agent:
    """A real spool and uplink of one node, without collectors, which answers captures as agents do."""

    def __init__(self, folder: Path, number: int, servers: Sequence[str], storage: ObjectStorage) -> None:
        self._folder = folder / f"agent{number}"
        self.node = f"n{number}"
        self._servers = list(servers)
        self._storage = storage
        self._jobs = 0
        self.job = ""
        self.sent: dict[str, int] = {}
        """The newest step of each job; its steps are 1, 2, and so on."""
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[CaptureRequest | CaptureCancel | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._answer_all, daemon=True)
        self.begin_job()
        self.open()
        self._worker.start()

    def begin_job(self) -> None:
        with self._lock:
            self._jobs += 1
            self.job = f"job-{self.node}-{self._jobs}"
            self.sent[self.job] = 0

    def open(self) -> None:
        with self._lock:
            self.spool = Spool(self._folder, max_bytes=1 << 30)
            self._batcher = Batcher(self.spool)
            nats = NatsUplinkConfig(servers=self._servers, partitions=PARTITIONS)
            self.uplink = NatsUplink(
                UplinkConfig(nats=nats, backoff_initial_s=0.1, backoff_max_s=1.0),
                node=self.node,
                spool=self.spool,
                clock=SystemClock(),
                on_request=self._requests.put,
                capture_tools=(CaptureTool.KINETO,),
            )
            self.uplink.start()

    def close(self, flush_s: float = 0.0) -> None:
        with self._lock:
            self.uplink.stop(flush_s)
            self.spool.close()

    def send(self) -> None:
        """Make a batch with the next step of the job."""
        with self._lock:
            step = self.sent[self.job] = self.sent[self.job] + 1
            records: list[Record] = [TrainingStep(job=self.job, step=step, step_time_s=1.0)]
            if step == 1 or step % 20 == 0:
                records += [
                    JobOrigin(job=self.job, cluster="c"),
                    RankPlacement(job=self.job, rank=0, gpu=0, world_size=1),
                ]
            self._flush(records)

    def _flush(self, records: Sequence[Record]) -> None:
        self._batcher.add(records)
        self._batcher.flush(time.time_ns())
        self.uplink.notify()

    def _answer_all(self) -> None:
        answered = set[str]()
        while (request := self._requests.get()) is not None:
            if isinstance(request, CaptureCancel) or request.capture_id in answered:
                continue
            answered.add(request.capture_id)
            self._capture(request)

    def _capture(self, request: CaptureRequest) -> None:
        path = self._folder / request.capture_id / "rank0.json"
        self._say(request, CaptureState.RUNNING)
        time.sleep(0.3)
        path.parent.mkdir()
        path.write_text(request.capture_id)
        size = path.stat().st_size
        file = CaptureFile(path=str(path), size_bytes=size, upload=True)
        self._say(request, CaptureState.DONE, (file,))
        key = file_key(request.object_folder, request.capture_id, (0,), self.node, path.name)
        while True:
            try:
                self._storage.put(key, path)
                break
            except PerfdError:
                time.sleep(1.0)
        uploaded = CaptureFileUpload(
            capture_id=request.capture_id,
            path=str(path),
            url=self._storage.url_of(key),
            size_bytes=size,
            time_unix_ns=time.time_ns(),
        )
        with self._lock:
            self._flush([uploaded])

    def _say(self, request: CaptureRequest, state: CaptureState, files: Sequence[CaptureFile] = ()) -> None:
        with self._lock:
            self.uplink.send_status(
                CaptureStatus(
                    capture_id=request.capture_id,
                    state=state,
                    time_unix_ns=time.time_ns(),
                    ranks=(0,),
                    files=tuple(files),
                )
            )


class _Receiver:
    """Counts the announcements of each job's alert, by the time at which it fired."""

    def __init__(self) -> None:
        self.fired: defaultdict[str, Counter[float]] = defaultdict(Counter)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    if alert["new"] and alert.get("state") == "firing":
                        receiver.fired[alert["job"]][alert["fired_at_unix_s"]] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class _Site:
    """Everything that runs."""

    nats: list[NatsServer]
    members: list[Member]
    postgres: PostgresCluster
    s3: Service
    proxy: FaultyProxy
    storage: ObjectStorage
    agents: list[_Agent]
    receiver: _Receiver
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

    def begin(self, part: str, chance: Random) -> tuple[str, Callable[[], None]]:
        """End or pause a part; returns what that is, and what brings the part back."""
        kind, number = part.rstrip("0123456789"), int(part.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
        if kind == "storage":
            if chance.random() < 0.5:
                self.proxy.fault = "full"
                return "full", lambda: setattr(self.proxy, "fault", "")
            self.s3.pause()
            return "pause", self.s3.resume
        if kind == "agent":
            agent = self.agents[number]
            agent.close()
            agent.open()
            return "restart", lambda: None
        one: Any = self.postgres if kind == "postgres" else None
        one = self.nats[number] if kind == "nats" else one
        one = self.members[number] if kind == "member" else one
        how = chance.choice(["kill", "kill", "stop", "pause"])
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

    def wanted(self) -> dict[str, int]:
        return {agent.job: agent.sent[agent.job] + 1 for agent in self.agents}

    def answers(self, wanted: dict[str, int]) -> bool:
        """Whether one running member knows of these steps or newer ones."""
        return any(
            all(steps.get(job, 0) >= step for job, step in wanted.items())
            for steps in map(_steps, self.running())
        )

    def leases(self) -> set[tuple[int, int | None]]:
        """Partition and epoch of each lease, as the first member that answers knows them."""
        found = next(filter(None, (one.get("/api/v1/group") for one in self.running())), None)
        return {(one["partition"], one["epoch"]) for one in found["partitions"]} if found else set()

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


@contextlib.contextmanager
def _site(folder: Path, agents: int, members: int, batches_per_s: float, lease_s: float) -> Iterator[_Site]:
    with contextlib.ExitStack() as stack:
        nats = stack.enter_context(nats_cluster(folder))
        postgres = stack.enter_context(PostgresCluster(settings="max_connections = 200"))
        s3 = stack.enter_context(s3_server(folder))
        make_bucket(s3.url, "traces")
        proxy = stack.enter_context(FaultyProxy(s3.url))
        receiver = stack.enter_context(_Receiver())
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
        fleet = [_Agent(folder, n, servers, storage) for n in range(agents)]
        site = _Site(nats, group, postgres, s3, proxy, storage, fleet, receiver, batches_per_s)
        seconds_until(site.recovered, _SETTLES_WITHIN_S)
        sender = threading.Thread(target=site.send_all)
        sender.start()
        try:
            yield site
        finally:
            site.over.set()
            sender.join()
            for agent in fleet:
                agent.close()


def run(
    folder: Path,
    *,
    faults: int,
    agents: int = 6,
    members: int = 3,
    batches_per_s: float = 30.0,
    lease_s: float = 3.0,
    seed: int = 1,
    only: Sequence[str] = (),
    seconds: float = float("inf"),
    postgres_away_s: float = 0.0,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Faults at random, the same for the same seed, then a quiet end; raises `TimeoutError`.

    Before them PostgreSQL is away for so long. After `seconds` there are no more faults.
    """
    chance = Random(seed)
    outcome = Outcome()
    with _site(folder, agents, members, batches_per_s, lease_s) as site:
        seconds_until(lambda: site.answers(site.wanted()), _SETTLES_WITHIN_S)
        if postgres_away_s:
            leases = site.leases()
            site.postgres.stop()
            time.sleep(postgres_away_s)
            outcome.postgres_away_moves = len(leases - site.leases())
            site.postgres.start()
            site.faults["postgres away"] += 1
        until_s = time.monotonic() + seconds
        for number in range(faults):
            if time.monotonic() > until_s:
                break
            if number % _NEW_JOB_EVERY == _NEW_JOB_EVERY - 1:
                for agent in site.agents:
                    agent.begin_job()
            report(_fault(site, chance, outcome, only))
        return _quiet(site, outcome)


def _fault(site: _Site, chance: Random, outcome: Outcome, only: Sequence[str]) -> str:
    """One fault from its beginning to its end; returns it in words."""
    kinds = {kind: names for kind, names in site.part_names().items() if not only or kind in only}
    several = chance.random() < _TWO_AT_ONCE
    # First the kind, or an agent would be the most likely victim.
    parts = {chance.choice(kinds[kind]) for kind in chance.choices(list(kinds), k=2 if several else 1)}
    if chance.random() < 0.5:
        site.ask_for_capture(chance)
    before = next((one for one in map(Member.holders, site.running())), [])
    began_s, wanted = time.monotonic(), site.wanted()
    ends = []
    said = []
    for part in sorted(parts):
        site.down.add(part)
        how, end = site.begin(part, chance)
        ends.append((part, end))
        said.append(f"{part} {how}")
        site.faults[f"{part.rstrip('0123456789')} {how}"] += 1
    outcome.pairs += len(parts) > 1
    alone = said[0] if len(said) == 1 else ""
    if chance.random() < 0.3:
        site.ask_for_capture(chance)
    took = ""
    if alone.startswith(("member", "nats")) and not alone.endswith("stop"):
        in_time = _happens(lambda: site.answers(wanted))
        outcome.overdue += not in_time
        took_s = time.monotonic() - began_s
        took = f", answered after {took_s:.1f} s"
        if alone.startswith("nats"):
            outcome.nats_loss_s.append(took_s)
            after = next(one for one in map(Member.holders, site.running()))
            moved = sum(a != b for a, b in zip(before, after, strict=False))
            outcome.nats_loss_moves += moved
            took += f", {moved} partitions moved"
        else:
            outcome.member_kill_s.append(took_s)
    else:
        time.sleep(chance.uniform(0.2, 6.0))
    for part, end in ends:
        end()
        site.down.discard(part)
    if chance.random() >= _AT_ONCE_AGAIN:
        wanted = site.wanted()
        outcome.overdue += not _happens(lambda: site.recovered() and site.answers(wanted))
    return ", ".join(said) + took


def _quiet(site: _Site, outcome: Outcome) -> Outcome:
    """Without faults: wait until all is stored, and compare."""
    site.over.set()
    time.sleep(1.0)
    for agent in site.agents:
        if not agent.uplink.wait_acknowledged(agent.spool.last_sequence, _SETTLES_WITHIN_S):
            raise TimeoutError(f"{agent.node} waits for acknowledgments")
    seconds_until(site.recovered, _SETTLES_WITHIN_S)
    sent = {job: last for agent in site.agents for job, last in agent.sent.items()}
    outcome.sent, outcome.jobs = sum(sent.values()), len(sent)
    with contextlib.suppress(TimeoutError):
        seconds_until(lambda: _count(site, "steps") >= outcome.sent, _SETTLES_WITHIN_S)
        seconds_until(lambda: _count(site, "alerts") >= len(sent), 60.0)
        seconds_until(lambda: len(site.receiver.fired) >= len(sent), 60.0)
        seconds_until(lambda: not _open_captures(site), _SETTLES_WITHIN_S)
    stored: dict[str, Counter[int]] = defaultdict(Counter)
    for job, step in _rows(site, "SELECT job, step FROM {}.steps"):
        stored[job][step] += 1
    outcome.stored = sum(map(len, stored.values()))
    outcome.missing = sum(len(set(range(1, last + 1)) - stored[job].keys()) for job, last in sent.items())
    outcome.twice = sum(n - 1 for steps in stored.values() for n in steps.values())
    alerts = Counter(job for (job,) in _rows(site, "SELECT job FROM {}.alerts"))
    outcome.alerts = alerts.total()
    outcome.alerts_lost = len(sent.keys() - alerts.keys())
    outcome.alerts_twice = sum(n - 1 for n in alerts.values())
    outcome.announced = len(site.receiver.fired)
    outcome.copies = sum(n - 1 for starts in site.receiver.fired.values() for n in starts.values())
    outcome.fired_again = sum(len(starts) - 1 for starts in site.receiver.fired.values())
    outcome.captures = len(site.accepted)
    found = {one["id"]: one for one in _captures(site)}
    states = Counter(found[one]["state"] if one in found else "unknown" for one in site.accepted)
    outcome.capture_states = dict(states)
    outcome.captures_undefined = sum(n for state, n in states.items() if state not in _FINAL)
    uploads = [
        (one["id"], file["upload"])
        for one in found.values()
        for rank in one["ranks"]
        for file in rank["files"]
        if file.get("upload", {}).get("state") == "stored"
    ]
    outcome.files_missing = sum(not _is_there(site, upload["url"], name) for name, upload in uploads)
    outcome.faults = dict(site.faults)
    outcome.load_average = os.getloadavg()[0]
    return outcome


def _happens(true: Callable[[], bool]) -> bool:
    try:
        seconds_until(true, _RECOVERS_WITHIN_S)
    except TimeoutError:
        return False
    return True


def _steps(member: Member) -> dict[str, int]:
    """The newest step of each job that a member's answer has."""
    found = member.get("/api/v1/fleet")
    return {row["name"]: row["step"] or 0 for row in found["jobs"]} if found else {}


def _captures(site: _Site) -> list[dict[str, Any]]:
    found = site.members[0].get("/api/v1/captures")
    return found["captures"] if found else []


def _open_captures(site: _Site) -> bool:
    found = _captures(site)
    return (not found and bool(site.accepted)) or any(one["state"] not in _FINAL for one in found)


def _is_there(site: _Site, url: str, content: str) -> bool:
    try:
        return site.storage.read(site.storage.key_of(url) or "", 1000).decode() == content
    except PerfdError:
        return False


def _rows(site: _Site, query: str) -> Iterator[tuple[Any, ...]]:
    for number in range(PARTITIONS):
        if site.postgres.sql(f"SELECT to_regclass('perfd_{number}.alerts')") != [(None,)]:
            yield from site.postgres.sql(query.format(f"perfd_{number}"))


def _count(site: _Site, table: str) -> int:
    return sum(one for (one,) in _rows(site, f"SELECT count(*) FROM {{}}.{table}"))


def main() -> int:
    """Print what became of everything; returns 1 when something is lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--batches-per-s", type=float, default=30.0, help="of all agents together")
    parser.add_argument("--lease-s", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="nats, member, postgres, storage, agent")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end before all faults")
    parser.add_argument("--postgres-away-s", type=float, default=0.0, help="before the faults")
    parser.add_argument("--folder", type=Path, help="where logs and spools stay")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # Agents say with each fault that they cannot reach the stream.
    logging.getLogger("perfd").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(exist_ok=True)
        began_s = time.monotonic()
        outcome = run(
            folder,
            faults=args.faults,
            agents=args.agents,
            members=args.members,
            batches_per_s=args.batches_per_s,
            lease_s=args.lease_s,
            seed=args.seed,
            only=args.only,
            seconds=args.seconds,
            postgres_away_s=args.postgres_away_s,
            report=lambda said: print(f"{time.monotonic() - began_s:7.1f} s: {said}", flush=True),
        )
    print(json.dumps({"schema": SCHEMA, **asdict(outcome)}) if args.json else _text(outcome))
    return 1 if outcome.failures else 0


def _text(one: Outcome) -> str:
    return (
        f"{sum(one.faults.values())} faults, {one.pairs} times two at once: {one.faults}\n"
        f"{one.sent:,} batches sent, {one.stored:,} stored, {one.missing:,} missing, {one.twice:,} twice\n"
        f"{one.jobs} jobs: {one.alerts} alerts stored, {one.alerts_lost} lost, {one.alerts_twice} twice; "
        f"{one.announced} announced, {one.copies} copies, {one.fired_again} fired again; "
        f"{one.postgres_away_moves} partitions moved without PostgreSQL\n"
        f"{one.captures} captures accepted: {one.capture_states}, {one.captures_undefined} undefined, "
        f"{one.files_missing} files missing\n"
        f"jobs answer again after the kill or pause of an aggregator, s: {_spread(one.member_kill_s)}\n"
        f"of a NATS server: {_spread(one.nats_loss_s)}, {one.nats_loss_moves} partitions moved; "
        f"{one.overdue} times not within three minutes\n"
        f"load {one.load_average:.1f}"
    )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "none"
    p50, p95 = np.percentile(values, (50, 95))
    return f"median {p50:.1f}, p95 {p95:.1f}, longest {max(values):.1f} ({len(values)} times)"


if __name__ == "__main__":
    sys.exit(main())
