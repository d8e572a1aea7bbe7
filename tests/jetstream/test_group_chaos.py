"""Parts of a whole site are killed, stopped and paused: a short run of the benchmark for 200 of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from objects.object_server import NEEDS_SERVER

from benchmarks.group_chaos import Outcome, run

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800), NEEDS_SERVER]


def require_nothing_lost(outcome: Outcome) -> None:
    assert outcome.stored == outcome.sent > 0
    assert outcome.alerts == outcome.announced == outcome.jobs > 0
    assert outcome.failures == 0, outcome


def test_nothing_is_lost_or_doubled_when_parts_of_a_group_die(tmp_path: Path) -> None:
    outcome = run(tmp_path, faults=6, agents=3, batches_per_s=12.0, seed=20)
    assert sum(outcome.faults.values()) >= 6
    require_nothing_lost(outcome)


def test_a_lost_nats_server_moves_no_partition(tmp_path: Path) -> None:
    outcome = run(tmp_path, faults=3, agents=3, batches_per_s=12.0, seed=4, only=["nats"])
    require_nothing_lost(outcome)
