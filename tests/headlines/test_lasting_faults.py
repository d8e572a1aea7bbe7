"""Faults of recorded jobs that last for longer than the windows in which a change of pace is looked for."""

from __future__ import annotations

from itertools import dropwhile
from pathlib import Path

import pytest

from benchmarks.headlines.looks import Look, Watched, watch
from benchmarks.headlines.truth import truth_of

GPU_JOBS = Path(__file__).parents[2] / "benchmarks/gpu"


def watched(name: str, folder: str = "recorded_everyday") -> Watched:
    recording = GPU_JOBS / folder / name / "recording"
    return watch(recording, name, truth_of(recording))


def looks_since_named(job: Watched, phase: int) -> list[Look]:
    """Those in a fault, from the first one that names it on."""
    assert job.truth is not None
    during = [one for one in job.truth.phases if one.fault != "healthy"][phase]
    looks = [one for one in job.looks if during.begin_unix_s <= one.unix_s < during.end_unix_s]
    return list(dropwhile(lambda one: one.kind in {"none", "unknown", "compute_bound"}, looks))


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "least_s"),
    [("slowlater2", "straggler", {0}, 80.0), ("latelater2", "data_loading", set(), 55.0)],
)
def test_it_is_the_headline_until_it_ends_and_nothing_else_is(
    name: str, kind: str, ranks: set[int], least_s: float
) -> None:
    job = watched(name)
    looks = looks_since_named(job, 0)
    assert {one.kind for one in looks} == {kind}
    assert {one.blamed for one in looks} == {frozenset(ranks)}
    assert looks[-1].at_s - looks[0].at_s >= least_s
    assert not job.false_blame


def test_a_fault_is_over_by_single_steps_where_lines_over_several_are_as_long_in_the_next_one() -> None:
    """Of five steps all take 0.78 s with slow loaders, and later four take 0.57 s and one 1.5 s."""
    job = watched("random139", "recorded_random")
    assert {one.kind for one in looks_since_named(job, 0)} <= {"host_bound", "late_hosts", "data_loading"}
    of_stalls = looks_since_named(job, 1)
    stalled = [one for one in of_stalls if one.blamed]
    assert {(one.kind, one.blamed) for one in stalled} == {("straggler", frozenset({0, 2}))}
    assert of_stalls[-1] in stalled
    assert "data_loading" not in {one.kind for one in of_stalls if one.at_s >= stalled[0].at_s}


@pytest.mark.slow
def test_three_faults_in_a_quarter_of_an_hour_are_each_the_headline_while_they_last() -> None:
    job = watched("lasting2")
    kinds = [{one.kind for one in looks_since_named(job, phase)} for phase in range(3)]
    assert kinds[0] == {"straggler"}
    assert kinds[1] <= {"straggler", "periodic_stall"}
    assert kinds[2] == {"data_loading"}
    assert job.looks[-1].step == 3060
    assert not job.false_blame
