"""What requests see of a job's verdict between and during rounds: that of the newest round, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aggregator.support import fleet, source, step

from perfd.aggregator.job_summaries import JobSummaries
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AggregatorState
from perfd.analysis.findings import steady_verdict
from perfd.clock import VirtualClock
from perfd.config import AnalysisConfig

_START_S = 2e6


class _Job:
    """A job of one node, whose aggregator makes a round when asked to."""

    def __init__(self) -> None:
        self._fleet = fleet()
        state = replace(AggregatorState.empty(Limits()), fleet=self._fleet)
        self.clock = VirtualClock(round(_START_S * 1e9))
        self.summaries = JobSummaries(AnalysisConfig(), state, self.clock)
        self._step = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step += 1
            self._fleet.apply(
                [step(self._step, job="job", time_s=_START_S + self._step, step_time_s=1.0)], source()
            )

    def round(self) -> None:
        self.clock.advance(1.0)
        self.summaries.make(self.clock.unix_ns() / 1e9)


def test_a_request_between_rounds_sees_what_the_newest_round_made() -> None:
    job = _Job()
    job.steps(30)
    job.round()
    made = job.summaries.newest("job")
    job.steps(5)

    assert job.summaries.live("job", _START_S) is made
    job.round()
    assert job.summaries.newest("job") is not made


def test_the_first_request_makes_numbers_that_no_round_has_made() -> None:
    job = _Job()
    job.steps(30)

    found = job.summaries.live("job", _START_S)
    assert found is not None
    assert found.summary.steps.last == 30


def test_while_a_round_is_at_work_requests_see_no_findings_that_it_may_not_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = _Job()
    job.steps(30)
    job.round()
    made = job.summaries.newest("job")
    seen = []

    def steadied(*arguments: object) -> object:
        seen.append(job.summaries.newest("job"))
        return steady_verdict(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("perfd.aggregator.job_summaries.steady_verdict", steadied)
    job.steps(5)
    job.round()
    assert seen == [made]
