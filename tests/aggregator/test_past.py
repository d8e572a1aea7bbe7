"""What a job went through stays known: how often it started again, what that cost, and earlier faults."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest
from aggregator.support import START_S, aggregator, place, source, step

from perfd.aggregator.jobs import JobState
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.clock import VirtualClock
from perfd.config import HistoryConfig
from perfd.model import Event, EventKind, JobOutcome
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


@pytest.fixture
def job():
    return JobState("llm", Limits(), AggregatorCounters())


@contextlib.contextmanager
def agent_of(running, agent_id="agent0"):
    with FakeAgent(running.grpc_address, agent_id=agent_id) as agent:
        agent.hello()
        yield agent


def work(running, agent, clock, numbers, *, step_time_s=1.0):
    """Steps, by default one a second, with a round after each."""
    for number in numbers:
        clock.advance(step_time_s)
        now_s = clock.unix_ns() / 1e9
        # A step that is made again has another loss.
        line = step(number, time_s=now_s, loss=now_s - START_S, step_time_s=step_time_s)
        agent.send(place(0, 0), line, sent_unix_ns=clock.unix_ns())
        running.tick()


def past(running):
    [summary] = running.summary("llm")
    return summary.past


def made(job, numbers, began_s):
    """Steps of a second each, the first of which ends a second after `began_s`."""
    for at, number in enumerate(numbers, start=1):
        line = step(number, time_s=START_S + began_s + at, loss=began_s + at)
        job.step(line, source(now_s=began_s + at))


def happens(job, kind, at_s, **fields):
    time_unix_ns = round((START_S + at_s) * 1e9)
    job.event(Event(kind=kind, time_unix_ns=time_unix_ns, message="", job="llm", **fields), at_s)


def test_starting_again_costs_the_time_until_the_job_is_where_it_was(clock):
    with aggregator(clock) as running, agent_of(running) as agent:
        work(running, agent, clock, range(1, 21))
        assert past(running).restarts_sentence == ""
        clock.advance(60.0)
        # Step 11 was done at 11 s, and is done again at 81 s.
        work(running, agent, clock, range(11, 31))
        assert (past(running).restarts_count, past(running).restarts_lost_s) == (1, pytest.approx(70.0))
        clock.advance(30.0)
        work(running, agent, clock, range(21, 31))
        assert past(running).restarts_sentence == (
            "The job started again 2 times, which cost 110.0 s, steps that were made twice included."
        )


def test_a_job_that_goes_on_with_the_next_step_lost_the_time_between(job):
    made(job, range(1, 11), 0.0)
    happens(job, EventKind.JOB_ENDED, 10.5, outcome=JobOutcome.TIME_LIMIT)
    made(job, range(11, 13), 100.0)
    assert (job.attempts.restarts, job.attempts.lost_s) == (1, pytest.approx(90.0))


def test_another_job_of_the_name_has_not_started_again(job):
    made(job, range(1, 11), 0.0)
    made(job, range(5, 11), 20.0)
    assert job.attempts.restarts == 1
    happens(job, EventKind.JOB_ENDED, 30.0, outcome=JobOutcome.COMPLETED)
    happens(job, EventKind.JOB_STARTED, 7_000.0)
    made(job, range(1, 5), 7_010.0)
    assert job.attempts.number == 3
    assert (job.attempts.restarts, job.attempts.lost_s) == (0, None)


def test_an_aggregator_that_starts_again_knows_the_past_of_its_jobs(clock, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "history.sqlite"))
    with aggregator(clock, history=history) as running, agent_of(running) as agent:
        work(running, agent, clock, range(1, 21))
        clock.advance(60.0)
        work(running, agent, clock, range(11, 21))
    fault = {
        "kind": "straggler",
        "culprits": [{"kind": "rank", "id": 3}],
        "began_unix_s": START_S + 5,
        "seen_unix_s": START_S + 15,
        "gain_ratio": 0.25,
        "lost_s": 2.5,
    }
    earlier = fault | {"began_unix_s": START_S - 90, "seen_unix_s": START_S - 80}
    with contextlib.closing(sqlite3.connect(tmp_path / "history.sqlite")) as file:
        attempt, text = file.execute("SELECT attempt, summary FROM jobs ORDER BY attempt DESC").fetchone()
        summary = json.loads(text)
        # The earlier one is of another job of that name.
        summary["past"]["faults"] = [earlier, fault]
        file.execute("UPDATE jobs SET summary = ? WHERE attempt = ?", (json.dumps(summary), attempt))
        file.commit()
    clock.advance(20.0)
    with aggregator(clock, history=history) as running, agent_of(running, "agent1") as agent:
        work(running, agent, clock, range(21, 24))
        assert (past(running).restarts_count, past(running).restarts_lost_s) == (1, pytest.approx(70.0))
        assert [one.headline for one in past(running).faults] == ["straggler: rank 3"]
        [entry] = running.overview("llm")
        assert entry["past"]["faults"][0]["sentence"] == past(running).faults[0].sentence
        assert entry["past"]["restarts_sentence"].startswith("The job started again once")


def test_longer_steps_of_an_unknown_cause_are_said_as_long_as_they_last_and_known_afterwards(clock):
    longer = "longer steps, cause unknown"
    with aggregator(clock) as running, agent_of(running) as agent:
        work(running, agent, clock, range(1, 21))
        names = []
        for number in range(21, 101):
            work(running, agent, clock, [number], step_time_s=2.0)
            names.append(running.overview("llm")[0]["bottleneck"]["name"])
        assert set(names[12:]) == {longer}
        [fault] = past(running).faults
        assert (fault.headline, fault.first_step, fault.lasts) == (longer, 21, True)
        assert fault.lost_s == pytest.approx(80.0, abs=3.0)
        [summary] = running.summary("llm")
        assert summary.bottleneck.short_name == longer
        work(running, agent, clock, range(101, 131))
        [entry] = running.overview("llm")
        assert entry["bottleneck"]["name"] == "unknown"
        assert (entry["past"]["faults"][0]["headline"], entry["past"]["faults"][0]["lasts"]) == (
            longer,
            False,
        )
        assert entry["past"]["faults"][0]["last_step"] == pytest.approx(100, abs=12)
        end = Event(
            kind=EventKind.JOB_ENDED,
            time_unix_ns=clock.unix_ns(),
            message="",
            job="llm",
            outcome=JobOutcome.COMPLETED,
        )
        agent.send(end, sent_unix_ns=clock.unix_ns())
        running.tick()
        [summary] = running.summary("llm")
        assert summary.bottleneck.short_name == longer
        # Of 210 s.
        assert summary.bottleneck.gain_ratio == pytest.approx(80 / 210, abs=0.03)


def test_after_a_restart_longer_steps_of_before_are_not_said(clock):
    with aggregator(clock) as running, agent_of(running) as agent:
        work(running, agent, clock, range(1, 21))
        work(running, agent, clock, range(21, 81), step_time_s=2.0)
        assert running.overview("llm")[0]["bottleneck"]["name"] == "longer steps, cause unknown"
        clock.advance(60.0)
        work(running, agent, clock, range(11, 15), step_time_s=2.0)
        assert running.overview("llm")[0]["bottleneck"]["name"] == "unknown"
