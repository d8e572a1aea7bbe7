"""What shows that a job started again, at the bounds of each sign."""

import pytest
from aggregator.support import source, step

from perfd.aggregator.jobs import JobState
from perfd.aggregator.jobs.job_lifetime import JobEnd, Lifetime
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.model import JobOutcome


@pytest.fixture
def job():
    return JobState("llm", Limits(), AggregatorCounters())


@pytest.mark.parametrize(("seconds_later", "attempt"), [(119.0, 1), (121.0, 2)])
def test_an_earlier_step_of_another_log_is_a_new_start_if_it_was_printed_two_minutes_later(
    job, seconds_later, attempt
):
    for number in (1, 2, 3):
        job.step(step(number, time_s=1000.0), source(agent="a", now_s=0.0))
    job.step(step(2, time_s=1000.0 + seconds_later, step_time_s=2.0), source(agent="b", now_s=200.0))
    assert job.attempts.number == attempt


@pytest.mark.parametrize(("seconds_later", "stepless"), [(1.5, False), (3.0, True)])
def test_a_rank_whose_start_is_known_to_a_second_has_the_same_process(job, seconds_later, stepless):
    job.rank_started(0, 100.0, 0.0)
    job.step(step(1, time_s=100.5), source())
    job.rank_started(0, 100.0 + seconds_later, 5.0)
    assert (job.stepless_s(6.0) is not None) is stepless


@pytest.mark.parametrize(("seconds_later", "runs"), [(9.0, False), (11.0, True)])
def test_a_step_printed_ten_seconds_after_the_end_shows_that_the_job_runs(seconds_later, runs):
    lifetime = Lifetime(agents=1)
    lifetime.take(JobEnd(time_unix_s=100.0, outcome=JobOutcome.FAILED))
    assert lifetime.steps_on(100.0 + seconds_later) is runs
    assert (lifetime.end is None) is runs
