"""The load of `benchmarks.fleet`: what its agents send, and that all of it arrives."""

from __future__ import annotations

import pytest

from benchmarks.aggregator_process import ROOT
from benchmarks.fleet import measure
from benchmarks.fleet_traffic import Traffic
from perfd.model import (
    Batch,
    CollectiveTimes,
    Event,
    EventKind,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
)
from perfd.wire.agent_messages import decode_agent_message

NOW_NS = 1_700_000_000_000_000_000


def sent(traffic: Traffic, node: int, sequence: int) -> Batch:
    message = decode_agent_message(traffic.batch(node, sequence, NOW_NS))
    assert isinstance(message, Batch)
    assert message.sequence == sequence
    return message


def steps(batch: Batch) -> list[tuple[str, int]]:
    return [(one.job, one.step) for one in batch.records if isinstance(one, TrainingStep)]


def test_jobs_restart_in_turn_and_count_their_steps_from_one_again() -> None:
    traffic = Traffic(nodes=4, jobs=2, restart_every_s=3)
    assert [traffic.restarts(at) for at in range(2, 10)] == [None, 0, None, None, 1, None, None, 2]
    assert [steps(sent(traffic, 0, at))[0][1] for at in range(2, 11)] == [2, 1, 2, 3, 4, 5, 6, 1, 2]
    assert [steps(sent(traffic, 1, at))[0][1] for at in range(2, 11)] == [2, 3, 4, 5, 1, 2, 3, 4, 5]
    assert steps(sent(traffic, 2, 2)) == []


def test_clocks_of_the_nodes_of_a_job_differ_within_the_skew() -> None:
    traffic = Traffic(nodes=10, jobs=2, skew_s=60.0)
    found = [sent(traffic, node, 2).sent_unix_ns - NOW_NS for node in range(0, 10, 2)]
    assert found == [-60_000_000_000, -30_000_000_000, 0, 30_000_000_000, 60_000_000_000]


def test_each_rank_has_the_same_operations_of_nccl() -> None:
    traffic = Traffic(nodes=4, jobs=2, nccl_operations=5)
    found = [
        one for node in (1, 3) for one in sent(traffic, node, 7).records if isinstance(one, CollectiveTimes)
    ]
    assert [one.rank for one in found] == list(range(16))
    assert {(one.job, one.communicator, one.communicator_size, tuple(one.sequences)) for one in found} == {
        ("job1", "1", 16, (30, 31, 32, 33, 34))
    }


def test_a_recording_is_sent_by_each_node_with_its_own_ranks() -> None:
    table = SampleTable(
        scope=Scope.RANK, times_unix_ns=[5, 5], entities=["x/0", "x/3"], columns={"a_s": [1.0, 2.0]}
    )
    event = Event(kind=EventKind.HARDWARE_ERROR, job="x", rank=1, time_unix_ns=9, message="XID 79")
    step = TrainingStep(job="x", step=40, step_time_s=1.0)
    second: list[Record] = [table, event, step]
    traffic = Traffic(nodes=4, jobs=2, recorded=[second, []])
    moved, noted = sent(traffic, 3, 2).records
    assert isinstance(moved, SampleTable)
    assert (list(moved.entities), list(moved.times_unix_ns)) == (["job1/8", "job1/11"], [NOW_NS, NOW_NS])
    assert isinstance(noted, Event)
    assert (noted.job, noted.rank, noted.time_unix_ns) == ("job1", 9, NOW_NS)
    assert steps(sent(traffic, 1, 2)) == [("job1", 2)]
    assert sent(traffic, 1, 3).records == []


@pytest.mark.system
@pytest.mark.parametrize("uplink", ["grpc", "nats"])
def test_all_that_agents_send_is_taken_once(uplink: str) -> None:
    traffic = Traffic(nodes=6, jobs=2, restart_every_s=2, skew_s=30.0, nccl_operations=3)
    found = measure(traffic, 6, ROOT, uplink, kept_s=5, partition_s=3)
    assert found["sent_batches"] == found["taken_batches"] == 6 * (1 + 5 + 5 + 6)
    assert found["lost_batches"] == found["malformed_messages"] == 0
    assert found["job_restarts"] == 5
