"""The offline fault benchmark: right on every recording, and its own arithmetic."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.__main__ import main
from benchmarks.faults.baselines import min_median, sliding_mean
from benchmarks.faults.offline import GPU_RUNS, RECORDINGS, TIMELINES, timeline_cases
from benchmarks.faults.score import Case, confusion, wilson
from perfd.analysis.findings import Kind
from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, ReplayProgress, replay

SHARED = os.environ.get("PERFD_SHARED")


@pytest.fixture(scope="module")
def reported() -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the command, which judges all recordings once."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.delenv("PERFD_SHARED", raising=False)
        code = main(["offline", "--json"])
    return code, json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def judged(reported) -> dict[str, dict[str, Any]]:
    """What perfd says of each recording, by name."""
    _, document = reported
    return {case["name"]: case for case in document["judges"]["perfd"]["cases"]}


@pytest.mark.slow
def test_no_recording_is_missed_and_none_raises_a_false_alarm(judged):
    assert {name: judged[name]["blamed"] for name in RECORDINGS} == {
        name: list(truth) for name, truth in RECORDINGS.items()
    }
    assert judged["pp4_few"]["kinds"][0] == "pipeline_bubble"


def test_while_it_plays_the_slow_rank_is_never_taken_for_slow_input():
    said: list[tuple[int, str]] = []

    def note(progress: ReplayProgress) -> None:
        said.extend((one.steps.steady_count, one.bottleneck.kind) for one in progress.aggregator.summary())

    replay(ReplayOptions(recording=bundled("dp4_slow2")), on_progress=note)

    assert {kind for steady, kind in said if steady < 5} == {Kind.UNKNOWN}
    assert {kind for steady, kind in said if steady >= 5} == {Kind.STRAGGLER}
    assert min(steady for steady, kind in said if kind == Kind.STRAGGLER) < 10


@pytest.mark.slow
def test_of_the_runs_on_gpus_none_is_missed_and_none_raises_a_false_alarm(judged):
    runs = [judged[run.name] for run in GPU_RUNS.iterdir()]

    right = [run for run in runs if run["blamed"] == run["truth"]]
    assert (sum(bool(run["truth"]) for run in right), sum(not run["truth"] for run in right)) == (33, 25)
    assert len(right) == len(runs)
    heavy = [run["kinds"][0] for run in runs if "heavy_last_stage" in run["name"]]
    assert sorted(set(heavy)) == ["pipeline_bubble", "pipeline_imbalance"]


@pytest.mark.skipif(SHARED is None, reason="PERFD_SHARED does not name the folder of public timelines")
def test_the_public_timelines_are_distinguished_by_any_evidence():
    cases = timeline_cases(Path(SHARED or "") / "stragglers")

    assert {case.name: case.blamed for case in cases} == {
        f"{name}, {evidence}": frozenset(truth)
        for name, truth in TIMELINES.items()
        for evidence in ("timers", "nccl", "both")
    }
    assert all(
        "sequence_imbalance" in case.kinds for case in cases if case.name in {"SE, timers", "SE, both"}
    )


@pytest.mark.slow
def test_the_command_says_what_it_found_and_its_exit_code_is_that_of_the_worst(reported, judged):
    code, document = reported

    assert code == 0
    assert document["schema"] == "perfd.bench.faults/1"
    assert len(document["judges"]) == 3
    counts = {name: count for name, count in document["judges"]["perfd"].items() if name != "cases"}
    assert counts == {
        "found": 34,
        "missed": 0,
        "silent": 29,
        "false_alarms": 0,
        "no_input": 0,
        "small": 0,
    }
    assert len(judged) == len(RECORDINGS) + len(list(GPU_RUNS.iterdir()))


def case(truth: set[int], blamed: set[int] | None) -> Case:
    return Case(name="c", truth=frozenset(truth), blamed=None if blamed is None else frozenset(blamed))


def test_a_wrong_name_is_a_miss_and_a_false_alarm():
    counts = confusion(
        [case({1}, {2}), case({1}, {1}), case(set(), {3}), case(set(), set()), case({1}, None)]
    )

    assert (counts.found, counts.missed, counts.false_alarms) == (1, 2, 2)
    assert (counts.silent, counts.no_input) == (1, 1)


def test_silence_about_a_small_fault_is_no_miss_and_a_wrong_name_is_one():
    silent, wrong, right = (replace(case({1}, blamed), small=True) for blamed in (set(), {2}, {1}))
    counts = confusion([silent, wrong, right])

    assert (counts.found, counts.missed, counts.false_alarms, counts.small) == (1, 1, 1, 1)


def test_the_interval_of_a_proportion_is_wilsons():
    assert wilson(30, 30) == pytest.approx((0.886, 1.0), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_simpler_rules_flag_a_stage_that_has_more_work():
    compute = np.tile([1.0, 1.0, 1.4, 1.4], (20, 1))

    assert min_median(compute) == {2, 3}
    assert sliding_mean(compute) == {2, 3}
    assert min_median(np.ones((20, 4))) == sliding_mean(np.ones((20, 4))) == set()
