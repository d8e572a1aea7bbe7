"""A job with switched faults: its plan, and what its phases really cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.gpu.phase_jobs import JOBS
from benchmarks.gpu.phase_truth import Steps, computed_anew, main, measure, write_truth
from benchmarks.gpu.phases import Fault, Phase, faulty, load, phase_at, phases, save, slow_data

STORED = sorted((Path(__file__).parents[2] / "benchmarks" / "gpu").glob("recorded_*/*/truth.json"))
PLAN = phases([Fault(kind="gpu", size=0.2, ranks=(2,)), Fault(kind="loader", size=0.3)])


def steps(seconds):
    begin = [1000.0]
    for one in seconds:
        begin.append(begin[-1] + one)
    return Steps(begin_unix_s=begin, seconds=seconds)


def times(healthy=(0.1, 0.1, 0.1), fault=0.125, loader=0.2):
    of = {0: healthy[0], 1: fault, 2: healthy[1], 3: loader, 4: healthy[2]}
    return [of[at] for at, phase in enumerate(PLAN) for _ in range(phase.last_step - phase.first_step + 1)]


def test_each_fault_lies_between_healthy_steps():
    assert [(one.kind, one.first_step, one.last_step) for one in PLAN] == [
        ("healthy", 1, 16),
        ("gpu", 17, 28),
        ("healthy", 29, 36),
        ("loader", 37, 48),
        ("healthy", 49, 58),
    ]


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if job.faults])
def test_every_job_is_healthy_in_half_of_its_phases_and_more(name):
    plan = JOBS[name].plan
    assert len(list(faulty(plan))) < len(plan) / 2
    assert all(after.first_step == before.last_step + 1 for before, after in pairwise(plan))


def test_a_plan_is_read_as_it_was_saved(tmp_path):
    save(PLAN, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == PLAN


def test_a_fault_without_ranks_is_that_of_all_ranks_and_a_healthy_phase_of_none():
    healthy, gpu, _, loader, _ = PLAN
    assert [gpu.holds(rank) for rank in range(4)] == [False, False, True, False]
    assert loader.holds(0)
    assert not healthy.holds(0)
    assert (phase_at(PLAN, 28), phase_at(PLAN, 59)) == (gpu, None)


def test_a_rank_stalls_at_the_first_step_and_then_at_every_fifth():
    stall = Phase(kind="stall", first_step=17, last_step=36, ranks=(0,), size=0.6)
    assert [step for step in range(17, 37) if stall.stalls_at(step)] == [17, 22, 27, 32]


def test_a_fault_costs_what_a_step_would_gain_without_it():
    found = measure(PLAN, steps(times(healthy=(0.1, 0.11, 0.1))))
    assert found[1].healthy_step_s == pytest.approx(0.105)
    assert found[1].lost_ratio == pytest.approx(1 - 0.105 / 0.125)
    assert found[1].spread_ratio == pytest.approx(0.005 / 0.105)
    assert found[0].lost_ratio is None
    assert (found[1].begin_unix_s, found[1].end_unix_s) == pytest.approx((1001.6, 1003.1))


def test_the_steps_that_warm_up_and_the_first_one_after_a_fault_do_not_count():
    seconds = times()
    for index in (0, 1, 2, 3, 28):
        seconds[index] = 9.0
    assert measure(PLAN, steps(seconds))[1].lost_ratio == pytest.approx(0.2)


def test_a_stalling_rank_costs_the_mean_of_its_steps():
    plan = phases([Fault(kind="stall", size=0.6, ranks=(0,), steps=20)])
    seconds = [0.1] * 16 + [0.7, 0.1, 0.1, 0.1, 0.1] * 4 + [0.1] * 10
    assert measure(plan, steps(seconds))[1].step_s == pytest.approx(0.22)


def test_phases_that_a_job_did_not_reach_have_no_truth():
    assert len(measure(PLAN, steps(times()[:40]))) == 3


def test_a_phase_in_which_a_job_was_ended_has_the_truth_of_its_steps_until_there():
    found = measure(PLAN, steps(times()[:42]))

    assert [(one.phase.kind, one.phase.last_step) for one in found][3:] == [("loader", 42)]
    assert found[3].lost_ratio == pytest.approx(0.5)


def test_the_truth_of_a_job_that_was_ended_is_made_of_when_its_steps_began(tmp_path):
    save(PLAN, tmp_path / "plan.json")
    (tmp_path / "truth").mkdir()
    rows = [
        {"step": at + 1, "begin_unix_s": begin, "host_s": 0.0}
        for at, begin in enumerate(steps(times()).begin_unix_s[:27])
    ]
    for rank in (0, 2):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"truth/truth-rank{rank}.jsonl").write_text(text)

    document = json.loads(write_truth(tmp_path).read_text())

    assert document["killed"]
    assert [(one["phase"]["kind"], one["phase"]["last_step"]) for one in document["phases"]] == [
        ("healthy", 16),
        ("gpu", 26),
    ]
    assert document["phases"][1]["lost_ratio"] == pytest.approx(0.2, abs=0.01)


def test_the_truth_is_made_of_what_each_rank_wrote(tmp_path):
    save(PLAN, tmp_path / "plan.json")
    truth = tmp_path / "truth"
    truth.mkdir()
    begin = steps(times()).begin_unix_s
    for rank in (0, 2):
        rows = [
            {"step": at + 1, "begin_unix_s": begin[at], "host_s": 0.07 if 36 <= at < 48 else 0.0}
            for at in range(58)
        ]
        rows[-1]["end_unix_s"] = begin[-1]
        (truth / f"truth-rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        added = {str(step): 0.03 for step in range(17, 29)} if rank == 2 else {}
        marks = {"steps_s": times(), "added_gpu_s": added}
        (truth / f"truth-gpu-rank{rank}.json").write_text(json.dumps(marks))
    document = json.loads(write_truth(tmp_path).read_text())
    gpu, loader = document["phases"][1], document["phases"][3]
    assert (gpu["added_gpu_s"], gpu["lost_ratio"]) == pytest.approx((0.03, 0.2))
    assert (loader["added_host_s"], loader["lost_ratio"]) == pytest.approx((0.07, 0.5))


def test_slow_data_is_there_from_the_first_step_and_measured_by_the_healthy_steps_after_it():
    plan = slow_data("storage", 0.08, steps=50, healthy_steps=26)

    assert [(one.kind, one.first_step, one.last_step) for one in plan] == [
        ("storage", 1, 50),
        ("healthy", 51, 76),
    ]
    found, _ = measure(plan, steps([0.4] * 50 + [0.2] * 26))
    assert found.lost_ratio == pytest.approx(0.5)


def test_checkpoints_that_healthy_steps_have_too_are_no_part_of_what_a_slow_host_costs():
    plan = [
        Phase(kind="healthy", first_step=1, last_step=40, ranks=(), size=0.0),
        Phase(kind="host", first_step=41, last_step=60, ranks=(1,), size=1.0),
        Phase(kind="healthy", first_step=61, last_step=80, ranks=(), size=0.0),
    ]
    seconds = [0.1] * 40 + [0.1, 0.3] * 10 + [0.1] * 20
    for step in (20, 50, 70):
        seconds[step] = 4.0

    assert measure(plan, steps(seconds))[1].lost_ratio == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}")
def test_stored_costs_are_those_of_the_rule_in_force(path):
    document = json.loads(path.read_text())

    for stored, anew in zip(document["phases"], computed_anew(document)["phases"], strict=True):
        assert stored["lost_ratio"] == pytest.approx(anew["lost_ratio"], abs=1e-4)


def test_costs_by_an_older_rule_are_computed_anew_and_those_that_change_are_shown(tmp_path, capsys):
    plan = [
        Phase(kind="healthy", first_step=1, last_step=40),
        Phase(kind="host", first_step=41, last_step=60, ranks=(1,), size=1.0),
        Phase(kind="healthy", first_step=61, last_step=80),
    ]
    seconds = [0.1] * 40 + [0.1, 0.1, 0.1, 0.5] * 5 + [0.1] * 20
    stored = [
        {**asdict(one), "lost_ratio": None if one.phase.kind == "healthy" else 0.0}
        for one in measure(plan, steps(seconds))
    ]
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({"name": "slow", "phases": stored, "steps_s": seconds}))

    assert main([str(tmp_path)]) == 0
    assert [one["lost_ratio"] for one in json.loads(path.read_text())["phases"]] == [None, 0.5, None]
    assert "host costs 50.0%, was 0.0%" in capsys.readouterr().out
