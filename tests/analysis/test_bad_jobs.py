"""Jobs that are not as regular as one would like: a rank is named only where the operations show it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.jobs import description, job_data, step_table
from analysis.test_lateness import BUCKETS, STEP_S, blamed, gradients, judged, lags

from perfd.analysis.data.job_data import CollectiveStack
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.analysis.operations.communicator_waits import stacked
from perfd.model import Event, EventKind, ParallelLayout, RankPlacement
from tests.support.nccl_records import CollectiveTable, NcclTime, stacks_of

LATE = {1: 0.3}


def summary(
    *tables: CollectiveTable | CollectiveStack, times_s: list[float], ranks: range = range(4), **known: Any
) -> JobSummary:
    busy = [NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in ranks]
    job = description(world_size=4, dp=4)
    data = job_data(step_table(times_s), description=job, collectives=tables, nccl=busy, **known)
    return summarise(data, AnalysisSettings())


def said(found: JobSummary) -> str:
    return " ".join(sentence for one in found.findings for sentence in one.evidence)


def test_with_a_rank_missing_nobody_is_blamed_and_the_missing_one_is_said() -> None:
    table = gradients(lags(40, 4, LATE))
    unknown = replace(table, durations_s=np.where(np.arange(4) == 2, np.nan, table.durations_s))

    found = summary(unknown, times_s=[STEP_S] * 100, ranks=range(2))

    assert blamed(found) == []
    assert Kind.MISSING_TELEMETRY in {one.kind for one in found.findings}
    assert "ranks 2, 3" in said(found)


def test_in_communicators_that_just_took_the_place_of_others_nobody_is_last_and_that_is_said() -> None:
    made = stacked(stacks_of([gradients(lags(40, 4, LATE))]), ParallelLayout(world_size=4, dp=4))[
        0
    ].collectives
    lasting, anew = (
        summary(replace(made, renewed=np.array([renewed])), times_s=[STEP_S] * 100)
        for renewed in (False, True)
    )

    assert blamed(lasting) == [1]
    assert blamed(anew) == []
    assert anew.nccl.renewed
    missing = next(one for one in anew.findings if one.kind is Kind.MISSING_TELEMETRY)
    assert "were replaced a few seconds ago" in missing.evidence[0]
    assert "same process groups" in missing.advice


def test_a_job_of_two_steps_is_too_short_for_a_verdict_and_is_shown_so() -> None:
    found = summary(gradients(lags(2, 4, LATE), sequence=np.arange(2 * BUCKETS)), times_s=[STEP_S] * 2)

    assert [one.kind for one in found.findings] == [Kind.UNKNOWN]
    assert "too few to judge where the time goes" in said(found)


def test_operations_that_a_rank_did_not_report_are_said_unless_it_came_late_or_they_may_be_to_come() -> None:
    table = gradients(lags(40, 4, {}))
    durations_s = table.durations_s.copy()
    durations_s[-300:, 2] = np.nan
    to_come = summary(replace(table, durations_s=durations_s), times_s=[STEP_S] * 100)
    durations_s[:200, 1] = np.nan
    late_agent = summary(replace(table, durations_s=durations_s), times_s=[STEP_S] * 100)
    durations_s[200:500:2, 2] = np.nan
    lost = summary(replace(table, durations_s=durations_s), times_s=[STEP_S] * 100)

    assert [one.seen_ratio for one in to_come.nccl.ranks] == [1.0] * 4
    assert [one.seen_ratio for one in late_agent.nccl.ranks] == [1.0] * 4
    assert [one.seen_ratio for one in lost.nccl.ranks] == pytest.approx([350 / 499] * 4)


@pytest.mark.parametrize("seed", range(5))
def test_steps_of_different_lengths_blame_only_who_is_late_in_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.uniform(0.5, 2.0, 40)
    in_turn, always = lags(40, 4, {}), lags(40, 4, LATE) * lengths[:, None]
    in_turn[np.arange(40), random.integers(0, 4, 40)] = 0.3 * STEP_S * lengths
    times_s = [STEP_S] * 60 + (STEP_S * lengths).tolist()

    assert blamed(summary(gradients(in_turn), times_s=times_s)) == []
    assert blamed(summary(gradients(always), times_s=times_s)) == [1]


@pytest.mark.parametrize(("late", "named"), [({}, []), (LATE, [1])])
def test_alternating_numbers_of_micro_batches_blame_only_who_is_late(
    late: dict[int, float], named: list[int]
) -> None:
    """Every other step has twice the reductions and takes twice as long."""
    single, double = lags(1, 4, late), np.repeat(lags(1, 4, late), 2, axis=0)
    steps = np.concatenate([double if step % 2 else single for step in range(40)])

    found = summary(gradients(steps), times_s=[STEP_S * (1 + step % 2) for step in range(100)])

    assert blamed(found) == named
    assert Kind.LATE_HOSTS not in {one.kind for one in found.findings}


def test_communicators_that_are_made_anew_in_each_step_leave_open_who_is_late() -> None:
    tables = [
        gradients(lags(1, 4, LATE), communicator=f"{step:x}", sequence=np.arange(BUCKETS))
        for step in range(40)
    ]

    found = summary(*tables, times_s=[STEP_S] * 100)

    assert blamed(found) == []
    assert (
        "For which rank is unknown: no communicator of ranks with equal work has enough operations"
        in said(found)
    )


def test_a_restart_in_the_middle_blames_nobody_for_what_was_before_it() -> None:
    """Rank 1 was slow; after the restart the steps are as short as the others'."""
    restarted = Event(
        job="job", kind=EventKind.RESTARTED, time_unix_ns=int((1000 + 50 * 2 * STEP_S) * 1e9), message=""
    )
    times_s = [2 * STEP_S] * 50 + [0.5] + [STEP_S] * 40
    after = gradients(lags(40, 4, {}), sequence=np.arange(40 * BUCKETS))

    found = summary(after, times_s=times_s, events=[restarted])

    assert blamed(found) == []
    assert Kind.LATE_HOSTS not in {one.kind for one in found.findings}


@pytest.mark.parametrize(
    ("began", "blames"), [([1, 1, 1, 1], False), ([1, 1, 1, -1], False), ([1, 1, -1, -1], True), ([], True)]
)
def test_processes_that_began_after_the_newest_step_are_of_a_start_without_steps(
    began: list[int], blames: bool
) -> None:
    """What is held of operations is of the run before; a clock that is ahead shows as one node's start."""
    times_s = [STEP_S] * 100
    steps = step_table(times_s)
    newest_ns = round(float(steps.time_unix_s[-1]) * 1e9)
    placed = {
        f"node{rank}": [RankPlacement(job="job", rank=rank, started_unix_ns=newest_ns + ago * 10**10)]
        for rank, ago in enumerate(began)
    }
    found = summary(gradients(lags(40, 4, LATE)), times_s=times_s, placements=placed)

    assert blamed(found) == ([1] if blames else [])
    assert found.steps.of_earlier_start is not blames
    assert ("it has made none since it started again" in said(found)) is not blames


def test_what_a_look_right_after_a_restart_holds_is_too_little_to_blame_anybody() -> None:
    """The first steps after it are slow on one rank, which loads its part of the checkpoint."""
    after = gradients(lags(3, 4, {2: 0.5}), sequence=np.arange(3 * BUCKETS))

    assert blamed(summary(after, times_s=[STEP_S] * 50 + [0.5] + [STEP_S] * 3)) == []
    assert blamed(judged(after)) == []


def noisy(ranks: int, seed: int = 0) -> np.ndarray:
    """Lags of 40 steps, each of some percent of a step."""
    return np.abs(np.random.default_rng(seed).normal(0, 0.01 * STEP_S, (40, ranks)))


def of_lags(lags_s: np.ndarray, times_s: list[float] | None = None) -> JobSummary:
    """A data-parallel job of as many ranks, in which steps are longer by the longest lag."""
    ranks = lags_s.shape[1]
    lasted_s = times_s or [STEP_S] * 60 + (STEP_S + lags_s.max(axis=1)).tolist()
    busy = [NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(ranks)]
    job = description(world_size=ranks, dp=ranks)
    data = job_data(step_table(lasted_s), description=job, collectives=[gradients(lags_s)], nccl=busy)
    return summarise(data, AnalysisSettings())


@pytest.mark.parametrize("ranks", [3, 5, 7, 13])
def test_worlds_of_odd_size_are_judged_like_others(ranks: int) -> None:
    late = noisy(ranks)
    assert blamed(of_lags(late)) == []
    late[:, 1] += 0.15 * STEP_S
    assert blamed(of_lags(late)) == [1]


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_rank_that_is_faster_than_all_others_is_not_blamed_nor_are_they(ranks: int) -> None:
    late = noisy(ranks)
    late[:, np.arange(ranks) != 1] += 0.2 * STEP_S

    assert blamed(of_lags(late)) == []


def test_a_job_of_one_rank_has_nobody_to_blame() -> None:
    assert blamed(of_lags(noisy(1))) == []


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_of_two_late_ranks_the_later_one_is_named(ranks: int) -> None:
    late = noisy(ranks)
    late[:, 1] += 0.3 * STEP_S
    late[:, 2] += 0.15 * STEP_S

    assert blamed(of_lags(late)) == [1]


@pytest.mark.parametrize("ranks", [16, 64])
def test_two_ranks_that_are_late_by_as_much_are_late_together(ranks: int) -> None:
    """The last one changes from step to step."""
    late = lags(40, ranks, {1: 0.2, 2: 0.2})
    late[np.arange(40), 1 + np.arange(40) % 2] += 0.01 * STEP_S

    found = of_lags(late)

    assert (found.bottleneck.kind, found.bottleneck.culprits) == (Kind.STRAGGLER, ())
    assert found.bottleneck.gain_ratio == pytest.approx(0.2 / 1.2, abs=0.02)
    assert "Ranks 1, 2 are late together" in said(found)


@pytest.mark.parametrize("each", [5, 10])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_fault_that_goes_round_is_of_no_rank(ranks: int, each: int) -> None:
    late = noisy(ranks)
    late[np.arange(40), np.arange(40) // each % ranks] += 0.25 * STEP_S

    assert blamed(of_lags(late)) == []


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("ago", [8, 20])
def test_a_fault_that_has_ended_is_not_blamed_any_more(ranks: int, ago: int) -> None:
    late = noisy(ranks)
    late[:-ago, 1] += 0.25 * STEP_S

    assert blamed(of_lags(late)) == []


@pytest.mark.parametrize("at", [[-12], [-30, -12]], ids=["once", "twice"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_that_was_stopped_for_half_a_minute_is_no_straggler(ranks: int, at: list[int]) -> None:
    late = noisy(ranks)
    late[at, 1] += 24.0

    assert blamed(of_lags(late)) == []


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_checkpoints_of_one_rank_and_evaluations_of_all_are_no_stragglers(ranks: int) -> None:
    saving = noisy(ranks)
    saving[[9, 39], 0] += 5 * STEP_S
    evaluating = [STEP_S] * 60 + [STEP_S * (13 if step % 25 == 24 else 1) for step in range(40)]

    assert blamed(of_lags(saving)) == []
    assert blamed(of_lags(noisy(ranks), evaluating)) == []
