"""What becomes of a run on GPUs: its recording packed and judged again, and the report over outcomes."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.gpu.fault_runs import Case, Outcome, compress, judge_again
from benchmarks.gpu.faults import planned, report
from perfd.recording import bundled


def outcome(fault: str = "slow_rank", rank: int = 2, **fields) -> Outcome:
    case = Case(fault=fault, strength=1.0, rank=rank, stages=1)
    return Outcome(**({"case": case, "before_s": 0.1, "after_s": 0.12} | fields))


def test_a_recorded_run_is_packed_and_judged_again(tmp_path):
    shutil.copytree(bundled("dp4_slow2"), tmp_path / "recording")
    case = {"fault": "slow_rank", "strength": 40.0, "rank": 2, "stages": 1}
    (tmp_path / "case.json").write_text(json.dumps(case))
    (tmp_path / "log").write_text("[fault] 1795235054.797\n")

    compress(tmp_path / "recording")
    judged = judge_again(tmp_path)

    assert judged.blamed == [2]
    assert judged.case.truth == [2]


def test_the_plan_is_random_half_blameless_and_never_blames_a_pipeline_of_two():
    cases = planned(gpus=2, repeat=1, seed=1)

    assert cases != planned(gpus=2, repeat=1, seed=2)
    assert cases == planned(gpus=2, repeat=1, seed=1)
    assert 0.4 <= sum(not case.truth for case in cases) / len(cases) <= 0.65
    assert all(not case.truth for case in cases if case.stages == 2)
    assert any(case.truth for case in planned(gpus=4, repeat=1, seed=1) if case.stages == 2)


def test_words_before_the_fault_or_about_others_are_wrong_and_the_first_right_one_counts():
    right = outcome(blamed=[2], verdicts=[(-1.0, "none", []), (3.0, "none", []), (6.5, "straggler", [2])])
    early = outcome(blamed=[2], verdicts=[(-1.0, "straggler", [2])])

    assert (right.detected_after_s, right.ever_wrong) == (6.5, False)
    assert early.ever_wrong
    assert outcome(fault="no_p2p", blamed=[1]).ever_wrong
    assert right.cost_ratio == pytest.approx(0.2)


def test_the_report_counts_what_costs_enough_and_false_alarms():
    text = report(
        [
            outcome(blamed=[2], verdicts=[(4.0, "straggler", [2])], lost_ratio=0.17),
            outcome(after_s=0.1005, blamed=[]),
            outcome(fault="none", blamed=[], after_s=0.1),
            outcome(fault="none", blamed=[1], after_s=0.1),
        ]
    )

    assert "found, of faults that cost 10 % and more     1 of    1" in text
    assert "false alarms at the end                      1 of    2" in text
    assert "lost share of a step, median error        0.3%" in text
