"""A node of which all ranks are slower than their peers elsewhere, though none of them is always the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.edge import batches
from benchmarks.faults.judge import LIVE, look
from benchmarks.faults.layouts import Effect, LayoutJob, Simulated
from benchmarks.faults.noise import held_out_world
from benchmarks.faults.scenario import Scenario
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state import Fleet
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.nodes.finding_blame import blames_of

_ONSET_S, _LOOK_S = 15.0, 30.0


def _summary(
    slow: Callable[[int], float], *, stalls: bool = False, gpu_samples: bool = True, **shape: Any
) -> JobSummary:
    """A job on two nodes, data parallel without `shape`; a rank computes longer by `slow`, or stalls."""
    fields = {"data": 16, "step_s": 0.25, "length_s": _LOOK_S, **shape}
    scenario = Scenario(seed=3, world=held_out_world(), gpu_samples=gpu_samples, **fields)
    longer = np.array([slow(rank) for rank in range(16)])
    made = LayoutJob if scenario.in_dimensions else Simulated

    def effect(step: int, now_s: float) -> Effect:
        if stalls:
            return Effect(stall_s=longer if now_s > _ONSET_S and step % 5 == 0 else 0.0)
        return Effect(longer if now_s > _ONSET_S else 0.0)

    trace = made(scenario, effect).run()
    fleet = Fleet(Limits(), AggregatorCounters())
    for sent in batches(scenario, trace, scenario.length_s):
        source = RecordSource(
            agent_id=sent.node, node=sent.node, sent_unix_s=sent.sent_unix_s, now_s=sent.at_s, late=False
        )
        fleet.apply(sent.records, source)
    return look(fleet, scenario.length_s, LIVE)


def _judged(slow: Callable[[int], float], **options: Any) -> Finding:
    """The first finding about it."""
    return _summary(slow, **options).bottleneck


@pytest.mark.parametrize("gpu_samples", [True, False])
def test_the_node_of_ranks_that_are_slow_together_is_named(gpu_samples: bool) -> None:
    """Eight of sixteen, each of which is the last now and then; the gain is that of all of them."""
    found = _judged(lambda rank: 0.12 if rank >= 8 else 0.0, gpu_samples=gpu_samples)
    assert (found.kind, tuple(found.culprits)) == (Kind.STRAGGLER, (Culprit(kind="node", id="node1"),))
    assert list(found.ranks) == list(range(8, 16))
    assert found.gain_ratio == pytest.approx(0.12 / 1.12, abs=0.02)
    assert found.evidence[0].startswith("Ranks 8, 9, ")


@pytest.mark.parametrize("ranks", [8, 4])
def test_ranks_that_stall_together_are_named_by_their_node_if_it_has_no_others(ranks: int) -> None:
    """As for a health check on one node, in every fifth step."""
    found = _judged(lambda rank: 1.0 if rank >= 16 - ranks else 0.0, stalls=True, step_s=0.5)
    node = (Culprit(kind="node", id="node1"),)
    assert found.kind is Kind.STRAGGLER
    assert tuple(found.culprits) == (node if ranks == 8 else tuple(map(_rank, range(12, 16))))
    assert list(found.culprit_ranks) == list(range(16 - ranks, 16))
    assert found.evidence[0].startswith("Every 5 steps, one takes ")


def _rank(rank: int) -> Culprit:
    return Culprit(kind="rank", id=rank)


def test_a_slow_rank_is_no_slow_node() -> None:
    """The others of its node are as fast as their peers."""
    found = _judged(lambda rank: 0.12 if rank == 9 else 0.0)
    assert tuple(found.culprits) == (Culprit(kind="rank", id=9),)


def test_half_of_the_ranks_of_each_node_are_no_slow_node() -> None:
    """Slow ranks that are spread over nodes, as in a job whose ranks have unequal work."""
    found = _judged(lambda rank: 0.12 if rank % 2 else 0.0)
    assert all(culprit.kind != "node" for culprit in found.culprits)


def test_the_node_is_blamed_as_a_node_and_no_gpu_of_it() -> None:
    """What is remembered of nodes over all jobs."""
    (blame,) = blames_of(_summary(lambda rank: 0.12 if rank >= 8 else 0.0), {})
    assert (blame.node, blame.gpu, blame.weight) == ("node1", "", 1.0)


def test_a_rank_that_the_others_of_its_node_wait_for_is_named() -> None:
    """Parameters are sharded in each node, so that all of a node are late for the others with one of them."""
    shape = {"sharded_in_nodes": True, "step_s": 0.5, "buckets": 8, "length_s": 50.0}
    found = _judged(lambda rank: 0.2 if rank == 11 else 0.0, gpu_samples=False, **shape)
    assert tuple(found.culprits) == (Culprit(kind="rank", id=11),)


def test_a_node_that_is_one_tensor_group_is_not_named() -> None:
    """It is late with any of its ranks, which wait for each other."""
    shape = {"data": 2, "tensor": 8, "step_s": 0.6, "micro_batches": 2}
    found = _judged(lambda rank: 0.3 if rank == 3 else 0.0, gpu_samples=False, **shape)
    assert all(culprit.kind != "node" for culprit in found.culprits)
