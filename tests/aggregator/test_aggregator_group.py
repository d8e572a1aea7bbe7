"""A member of a group starts and stops partitions as its leases change."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator.group import AggregatorGroup, aggregator_group
from perfd.aggregator.group.sharing import GroupView
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.history.history_rows import (
    agent_row,
    alert_row,
    capture_row,
    engine_row,
    exporter_row,
    job_rows,
    node_memory_row,
    rows,
    summary_row,
)
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.partition import Partition
from perfd.aggregator.state import AgentState, Durable
from perfd.config import AggregatorConfig, HistoryConfig, NatsGroupConfig, NatsListenConfig, RulesConfig
from perfd.model import (
    Alert,
    AlertState,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    JobOrigin,
    RankPlacement,
    Record,
    ServerInfo,
    StepPhases,
    TrainingStep,
)
from perfd.rules.rule_model import EngineState


class FakeLeases:
    """Holds one partition, which fails to start; from the second query on it should be released."""

    def __init__(self, *_: object) -> None:
        self.view = GroupView(connected=True)
        self.given_up = threading.Event()
        self.asked = 0

    def start(self, address: str) -> None:
        pass

    def stop(self) -> None:
        pass

    def held(self, *_: object) -> bool:
        return True

    serves = answers = held

    def mine(self) -> dict[int, int]:
        self.asked += 1
        return {0: 1} if self.asked == 1 else {}

    def releasing(self) -> set[int]:
        return set() if self.asked <= 1 or self.given_up.is_set() else {0}

    def released(self, partition: int) -> None:
        assert partition == 0
        self.given_up.set()


def test_a_partition_that_could_not_be_started_is_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator_group, "Leases", FakeLeases)
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    group = AggregatorGroup(
        AggregatorConfig(
            http_listen="127.0.0.1:0",
            history=HistoryConfig(path=str(no_folder / "history.sqlite")),
            rules=RulesConfig(builtin=False),
            nats=NatsListenConfig(servers=["nats://127.0.0.1:1"], group=NatsGroupConfig(partitions=1)),
        )
    )
    leases: Any = group._leases
    group.start()
    try:
        assert leases.given_up.wait(60.0)
        assert leases.asked > 1
    finally:
        group.stop()


def test_partitions_start_two_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise the last of a killed member's partitions waits for the starts of all others."""
    both = threading.Barrier(2)
    served = threading.Semaphore(0)
    starts: list[int] = []

    class TwoPartitions(FakeLeases):
        def mine(self) -> dict[int, int]:
            return {0: 1, 1: 1}

        def releasing(self) -> set[int]:
            return set()

    class SlowAggregator:
        superseded = False

        def __init__(self, config: AggregatorConfig, *, partition: Partition) -> None:
            starts.append(partition.number)

        def start(self) -> None:
            both.wait(60.0)
            served.release()

        def stop(self) -> None:
            pass

    monkeypatch.setattr(aggregator_group, "Leases", TwoPartitions)
    monkeypatch.setattr(aggregator_group, "Aggregator", SlowAggregator)
    group = AggregatorGroup(
        AggregatorConfig(
            http_listen="127.0.0.1:0",
            history=HistoryConfig(path=str(tmp_path / "history.sqlite")),
            rules=RulesConfig(builtin=False),
            nats=NatsListenConfig(servers=["nats://127.0.0.1:1"], group=NatsGroupConfig(partitions=2)),
        )
    )
    group.start()
    try:
        assert served.acquire(timeout=90.0)
        assert served.acquire(timeout=90.0)
        assert sorted(starts) == [0, 1]
    finally:
        both.abort()
        group.stop()


def test_a_member_has_imported_all_that_a_partition_needs_before_it_joins(tmp_path: Path) -> None:
    """On a busy machine that took seconds of a member that had just been started, as its jobs waited."""
    program = f"""
import sys
from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.group import AggregatorGroup
from perfd.config import AggregatorConfig, HistoryConfig, NatsGroupConfig, NatsListenConfig

nats = NatsListenConfig(servers=["nats://127.0.0.1:1"], group=NatsGroupConfig(partitions=1))
history = HistoryConfig(path={str(tmp_path / "history.sqlite")!r})
AggregatorGroup(AggregatorConfig(http_listen="127.0.0.1:0", history=history, nats=nats))
known = set(sys.modules)
one = Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen="127.0.0.1:0", history=history))
one.start()
one.stop()
print(sorted(name for name in sys.modules.keys() - known if name.startswith("perfd")))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


def _fill(path: Path) -> None:
    """Write a row of each kind that a start reads."""
    history = HistoryStore(SqliteDatabase(path))
    now_s = time.time()
    written = [
        agent_row(AgentState(agent_id="a", node="n"), 1, now_s),
        *job_rows("j", 1, now_s, now_s),
        summary_row("j", 1, {"name": "j", "past": {}}),
        exporter_row("notifications-r", b"\x80"),
        engine_row(EngineState(time_unix_s=now_s)),
        alert_row(Alert(name="A", labels={}, state=AlertState.FIRING, fired_at_unix_s=now_s), now_s),
        capture_row("c", now_s, b"{}"),
        *(node_memory_row(kind, "n", "k", now_s, {}) for kind in ("node", "incident", "drain")),
    ]
    records: tuple[Record, ...] = (
        JobDescription(job="j", framework="f"),
        TrainingStep(job="j", step=1, time_unix_ns=int(now_s * 1e9)),
        StepPhases(job="j", step=1, phases={}),
        Event(kind=EventKind.CHECKPOINT, time_unix_ns=int(now_s * 1e9), job="j", message=""),
        JobOrigin(job="j"),
        GpuInfo(index=0, name="g"),
        RankPlacement(job="j", rank=0, gpu=0),
        ServerInfo(server="s", engine="vllm"),
    )
    for record in records:
        kept = Durable(node="n", job="j", attempt=1, record=record, time_unix_s=now_s)
        written += rows(kept, now_s)
    assert history.submit(written)
    assert history.wait_stored(60.0)
    history.close()


def test_types_that_a_start_decodes_are_prepared_before_a_member_joins(tmp_path: Path) -> None:
    """As partitions start concurrently: msgspec 0.22 crashes if two threads first decode a type at once."""
    _fill(tmp_path / "history-0.sqlite")
    program = f"""
import sys, threading
from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.group import AggregatorGroup
from perfd.aggregator.group.partition_config import partition_config
from perfd.aggregator.partition import Partition
from perfd.config import (
    AggregatorConfig, ExportersConfig, HistoryConfig, NatsGroupConfig, NatsListenConfig, NotificationsConfig,
    WebhookReceiver,
)

nats = NatsListenConfig(servers=["nats://127.0.0.1:1"], group=NatsGroupConfig(partitions=1))
notifications = NotificationsConfig(webhooks=[WebhookReceiver(name="r", url="http://127.0.0.1:1")])
exporters = ExportersConfig(notifications=notifications)
history = HistoryConfig(path={str(tmp_path / "history.sqlite")!r})
config = AggregatorConfig(http_listen="127.0.0.1:0", history=history, nats=nats, exporters=exporters)
AggregatorGroup(config)
prepared = set()

def note(frame, event, _):
    # What msgspec calls for each class that is decoded for the first time.
    if event == "call" and frame.f_code.co_filename.endswith("/msgspec/_utils.py"):
        prepared.add(str(frame.f_locals.get("obj")))

sys.setprofile(note)
threading.setprofile(note)
partition = Partition(number=0, count=1, epoch=1, held=lambda: True, serves=lambda: True)
one = Aggregator(partition_config(config, 0), partition=partition)
one.start()
found = [one._state.fleet.jobs["j"].attempts.number, one.alerts()[0]["name"]]
one.stop()
print(found, sorted(prepared))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[1, 'A'] []\n", 0), ran.stderr
