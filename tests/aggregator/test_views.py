"""What decides who is captured: how long each rank computes, as far as something tells it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analysis.jobs import job_data, phase_table, step_table

from perfd.aggregator.captures.capture_view import job_view
from perfd.aggregator.limits import Limits
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.analysis.collectives.nccl_summary import NcclSummary
from perfd.analysis.collectives.waiting_by_rank import NcclRank
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.capture.expected_job_end import Pace
from perfd.capture.selection.rank_selection import JobView, select
from perfd.model import CaptureTool, JobDescription, RankPlacement

STEPS = step_table([2.0] * 20)
PLACEMENTS = {"n1": [RankPlacement(job="llm", rank=rank) for rank in range(4)]}
WAITS = (0.4, 0.1, None, 0.3)


def view(waits: tuple[float | None, ...] = (), **fields: Any) -> JobView:
    data = job_data(STEPS, placements=PLACEMENTS, **fields)
    ranks = [
        NcclRank(rank=rank, busy_ratio=0.5, wait_ratio=wait, gain_ratio=None)
        for rank, wait in enumerate(waits)
    ]
    summary = replace(summarise(data, AnalysisSettings()), nccl=NcclSummary(ranks=ranks))
    return job_view(AggregatorState.empty(Limits()), data, summary, CaptureTool.NSYS)


def times(found: JobView) -> dict[int, float | None]:
    return {rank.rank: rank.compute_s for rank in found.ranks}


def test_timers_by_rank_show_who_is_slowest() -> None:
    by_rank = [1.0, 1.0, 1.5, 1.0]
    phases = phase_table(STEPS, by_rank={"forward-compute": by_rank, "backward-compute": by_rank})
    assert times(view(WAITS, phases=phases)) == {0: 2.0, 1: 2.0, 2: 3.0, 3: 2.0}


def test_without_timers_the_rank_that_waits_least_in_nccl_is_slowest() -> None:
    found = view(WAITS)
    assert times(found) == {0: 2.0 * 0.6, 1: 2.0 * 0.9, 2: None, 3: 2.0 * 0.7}
    chosen = select("slowest:2", replace(found, nodes=("n1",)))
    assert chosen.by_node == {"n1": (1, 3)}


def test_without_either_nobody_is_slowest() -> None:
    assert times(view()) == dict.fromkeys(range(4))


def test_the_pace_is_that_of_the_newest_steady_steps() -> None:
    description = JobDescription(job="llm", framework="megatron-lm", train_steps=60)
    steps = step_table([30.0] + [9.0] * 20 + [2.0] * 20, warmup=[True] + [False] * 40)
    data = replace(job_data(steps), description=description)
    pace = job_view(
        AggregatorState.empty(Limits()), data, summarise(data, AnalysisSettings()), CaptureTool.NSYS
    ).pace
    assert (pace.step, pace.train_steps, pace.step_time_s) == (int(steps.step[-1]), 60, 2.0)
    assert pace.stepped_unix_s == steps.time_unix_s[-1]


def test_the_end_is_known_from_the_jobs_options_and_its_ranks_before_its_first_step() -> None:
    arguments = {"exit_interval": "40", "exit_duration_in_mins": "10"}
    description = JobDescription(job="llm", framework="megatron-lm", arguments=arguments)
    rank = RankPlacement(job="llm", rank=0, started_unix_ns=5_000_000_000, time_limit_unix_s=900.0)
    for steps in (step_table([]), step_table([2.0] * 20)):
        data = replace(job_data(steps, placements={"n1": [rank]}), description=description)
        pace = job_view(
            AggregatorState.empty(Limits()), data, summarise(data, AnalysisSettings()), CaptureTool.NSYS
        ).pace
        assert (pace.exit_interval_steps, pace.exit_unix_s, pace.limit_unix_s) == (40, 605.0, 900.0)


def test_a_job_without_steps_has_no_pace() -> None:
    data = job_data(step_table([]))
    assert (
        job_view(
            AggregatorState.empty(Limits()), data, summarise(data, AnalysisSettings()), CaptureTool.NSYS
        ).pace
        == Pace()
    )
