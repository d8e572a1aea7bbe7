"""The simulated fault benchmark in short: what it finds, and that it would notice a bad judge."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.faults import judge as judging
from benchmarks.faults import simulated
from benchmarks.faults.__main__ import main
from benchmarks.faults.fault_kinds import KINDS
from benchmarks.faults.judge import judge
from benchmarks.faults.kinds import watched
from benchmarks.faults.noise import held_out_world, tuning_world
from benchmarks.faults.scenario import Fault, Scenario
from benchmarks.faults.simulation import simulate

pytestmark = pytest.mark.slow


def scenario(fault: Fault = Fault.NONE, strength: float = 0.0, **fields) -> Scenario:
    defaults = {"seed": 3, "world": held_out_world(), "data": 4, "step_s": 0.2, "rank": 2}
    return Scenario(**(defaults | {"fault": fault, "strength": strength} | fields))


@pytest.mark.parametrize(
    ("fault", "strength"),
    [(Fault.OTHER_WORK, 0.3), (Fault.SLOW_CLOCK, 0.5), (Fault.LATE_ENTRY, 0.3), (Fault.HANG, 0.0)],
)
@pytest.mark.parametrize("shape", [{"data": 2}, {"data": 8}, {"data": 2, "overlap": False, "buckets": 2}])
def test_a_fault_is_found_and_nobody_else_is_blamed(fault, strength, shape):
    verdict = judge(scenario(fault, strength, rank=1, **shape))

    assert (verdict.blamed, verdict.wrongly) == ({1}, frozenset())


@pytest.mark.parametrize(
    ("fault", "strength"),
    [
        (Fault.NONE, 0.0),
        (Fault.SLOW_LOADERS, 0.3),
        (Fault.SLOW_LINK, 2.0),
        (Fault.SEQUENCES, 0.2),
        (Fault.HICCUPS, 0.3),
        (Fault.CHECKPOINT, 0.0),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_nobody_is_blamed_where_nobody_is_to_blame(fault, strength, ranks):
    verdict = judge(scenario(fault, strength, data=ranks, rank=1))

    assert verdict.wrongly == frozenset()


def test_the_slow_rank_of_a_pipeline_is_distinguished_from_those_that_are_late_with_it():
    verdict = judge(scenario(Fault.OTHER_WORK, 0.4, stages=2, step_s=0.5, length_s=60.0, rank=5))

    assert verdict.blamed == {5}
    assert not judge(scenario(Fault.HEAVY_LAST_STAGE, 0.3, stages=2, step_s=0.5)).wrongly


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        # One alone would gain nothing: the job would wait for the other one.
        ("ranks 2 and 5 slow by 20%", "rank 2, rank 5"),
        ("context ring: rank 6 slow by 20%", "rank 6"),
    ],
)
def test_ranks_with_more_work_stay_named_once_their_gpus_show_it(kind, ranks):
    said, wrongly = watched(KINDS[kind], gpu_samples=True, seed=1)

    assert f": straggler {ranks}," in said[-1]
    assert not wrongly


def test_overlapped_gradients_wait_for_one_lag_again_and_again():
    trace = simulate(replace(scenario(Fault.OTHER_WORK, 0.1, data=2, rank=1), onset_s=0.0))
    late = [operation for operation in trace.operations[0] if operation.communicator == "dp0"][-48:]

    waited_s = sum(operation.end_s - operation.start_s for operation in late) / 2
    # A tenth of a step is late, and far more is waited in kernels.
    assert waited_s > 0.25 * 0.2


def test_two_worlds_have_other_noise():
    assert set(tuning_world().residuals).isdisjoint(held_out_world().residuals)
    assert np.abs(held_out_world().residuals).max() < 0.25


def test_the_command_prints_every_figure_and_fails_beyond_its_bounds(capsys, monkeypatch):
    few = [scenario(Fault.OTHER_WORK, 0.3), scenario(Fault.NONE), scenario(Fault.SEQUENCES, 0.2)]
    monkeypatch.setattr(simulated, "scenarios", lambda *_, **__: few)
    monkeypatch.setattr(simulated, "judge", cache(judge))

    assert main(["simulated", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["figures"]["found, of faults that cost 10 % and more"]["hits"] == 1
    assert main(["simulated"]) == 0
    assert "simpler rules" in capsys.readouterr().out

    few[:] = [scenario(length_s=30.0)]
    monkeypatch.setattr(judging, "blamed_by", lambda _: frozenset({0}))
    assert main(["simulated"]) == 1
    assert "1 of 1 clean runs ended with a false alarm." in capsys.readouterr().out
