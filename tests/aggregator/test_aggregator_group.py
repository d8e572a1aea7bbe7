"""A member of a group starts and stops partitions as its leases change."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator.group import AggregatorGroup, aggregator_group
from perfd.aggregator.group.sharing import GroupView
from perfd.config import AggregatorConfig, HistoryConfig, NatsGroupConfig, NatsListenConfig, RulesConfig


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
one = Aggregator(AggregatorConfig(listen="127.0.0.1:0", history=history))
one.start()
one.stop()
print(sorted(name for name in sys.modules.keys() - known if name.startswith("perfd")))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr
