"""Aggregators of a group are killed, stopped and paused: a short run of `benchmarks.group_chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest
from objects.object_server import NEEDS_SERVER

from benchmarks.group_chaos.faults import run

pytestmark = [pytest.mark.system, pytest.mark.timeout(600), NEEDS_SERVER]


def test_nothing_is_lost_or_doubled_when_aggregators_of_a_group_die(tmp_path: Path) -> None:
    # Only aggregators: Debian's nats-server 2.9 may refuse a consumer after the death of servers.
    outcome = run(tmp_path, faults=3, agents=3, batches_per_s=12.0, seed=20, only=["member"])
    assert sum(outcome.faults.values()) >= 3
    assert outcome.stored == outcome.sent > 0
    assert outcome.alerts == outcome.announced == outcome.jobs > 0
    assert outcome.failures == 0, outcome
