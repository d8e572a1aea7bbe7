"""An agent that sends too much of anything: the page stays small, others are not harmed, all is counted."""

import logging

import grpc
import pytest
from aggregator.support import START_S, aggregator, fleet, gpus, place, source, step, values
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator import Aggregator
from perfd.aggregator.jobs import JobState
from perfd.aggregator.jobs.first_reporters import FirstReporters
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.cli import main
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, HistoryConfig
from perfd.errors import ConfigError
from perfd.model import (
    CollectorHealth,
    Event,
    EventKind,
    JobDescription,
    PhaseTime,
    SampleTable,
    Scope,
    StepPhases,
)
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


def page_of(running, clock):
    clock.advance(1.0)
    running.tick()
    return values(running.page())


def refused(page):
    """Bounds that refused something."""
    prefix = 'perfd_rejected_total{bound="'
    return {name.removeprefix(prefix).removesuffix('"}') for name in page if name.startswith(prefix)}


def table(scope, entities, metrics):
    return SampleTable(
        scope=scope,
        times_unix_ns=[round(START_S * 1e9)] * len(entities),
        entities=entities,
        columns={name: [1.0] * len(entities) for name in metrics},
    )


def test_one_agent_cannot_take_the_place_of_all_jobs(clock):
    with aggregator(clock) as running:
        with FakeAgent(running.grpc_address, node="bad", agent_id="bad") as bad:
            bad.hello()
            bad.send(*(step(1, job=f"made-up-{number}") for number in range(1000)))
        with FakeAgent(running.grpc_address, node="good", agent_id="good") as good:
            good.hello()
            good.send(*(step(number) for number in range(1, 9)))
            page = page_of(running, clock)
    assert page['perfd_step{perfd_job="llm"}'] == 8
    assert page["perfd_jobs"] == 65
    assert page['perfd_rejected_total{bound="jobs_per_node"}'] == 1000 - 64


def test_a_full_aggregator_says_which_setting_makes_room(clock, caplog, capsys):
    with aggregator(clock, max_jobs=2, http_listen="127.0.0.1:0") as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(step(1, job="a"), step(1, job="b"))
            assert running.jobs_problem() is None
            with caplog.at_level(logging.WARNING):
                agent.send(step(1, job="c"))
        assert running.jobs() == ["a", "b"]
        assert "holds 2, as many as `max_jobs`" in running.jobs_problem()
        (logged,) = (one for one in caplog.records if one.name.startswith("perfd."))
        assert (logged.bound, logged.setting) == ("jobs", "max_jobs")
        assert main(["status", "--aggregator", running.http_address]) == 0
        assert " ".join(capsys.readouterr().out.split()).endswith(running.jobs_problem())
        clock.advance(3601.0)
        running.tick()
        assert running.jobs_problem() is None


@pytest.mark.parametrize("max_jobs", [0, -1])
def test_an_aggregator_without_room_for_a_job_is_refused(max_jobs):
    with pytest.raises(ConfigError, match="max_jobs"):
        Aggregator(AggregatorConfig(max_jobs=max_jobs))


def test_a_new_job_is_no_look_at_all_others(monkeypatch):
    looked = []
    ended = JobState.ended
    monkeypatch.setattr(JobState, "ended", property(lambda job: looked.append(job) or ended.fget(job)))
    many = fleet(jobs=200)
    for number in range(200):
        many.apply([step(1, job=f"job-{number}")], source(agent=f"a{number}", node=f"n{number}"))
    at_first = len(looked)
    many.apply([step(1, job="refused")], source(agent="late", node="late"))
    assert len(many.jobs) == 200
    assert at_first < 200 * 10
    assert len(looked) - at_first < 10


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_who_reported_most_jobs_is_known_after_any_changes(changes):
    known = FirstReporters()
    jobs = {who: [] for who in "abc"}
    for number, (who, add) in enumerate(changes):
        if add:
            job = JobState(str(number), Limits(), AggregatorCounters())
            known.add(who, job)
            jobs[who].append(job)
        elif jobs[who]:
            known.remove(jobs[who].pop().name)
        count = {who: len(theirs) for who, theirs in jobs.items()}
        assert {who: list(known.jobs(who)) for who in "abc"} == jobs
        if any(count.values()):
            assert count[known.with_most()] == max(count.values())


def test_a_job_that_ended_makes_room(clock):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        for number in range(100):
            agent.send(step(1, job=f"array-{number}"))
            ended = Event(
                kind=EventKind.JOB_ENDED, time_unix_ns=clock.unix_ns(), message="", job=f"array-{number}"
            )
            agent.send(ended)
        page = page_of(running, clock)
    assert page["perfd_jobs"] == 100
    assert refused(page) == set()


def test_what_one_node_reads_is_bounded_in_entities_and_metrics_together(clock):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        names = [f"m{number}" for number in range(100)]
        for scope in Scope:
            agent.send(table(scope, [f"llm/{number}" for number in range(300)], names))
        page = page_of(running, clock)
    made = sum("_m" in name.split("{")[0] for name in page)
    assert made <= len(Scope) * 8192
    assert {"names_per_scope"} <= refused(page)


def test_the_bound_of_a_scope_holds_in_whatever_order_names_come(clock):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        for number in range(100):
            agent.send(table(Scope.NIC, [f"nic{number}"], ["bytes"]))
        for number in range(0, 120, 10):
            agent.send(table(Scope.NIC, ["nic0"], [f"m{number + i}" for i in range(10)]))
        for number in range(100, 256):
            agent.send(table(Scope.NIC, [f"nic{number}"], ["bytes"]))
        readings = running.state.fleet.nodes["node0"].readings[Scope.NIC]
        entities, metrics = readings.layout.shape
    assert entities * metrics <= 8192


def test_long_names_are_refused_and_counted(clock):
    long = "x" * 10_000
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(
            step(1, job=long),
            step(1),
            table(Scope.NIC, [long], ["bytes"]),
            CollectorHealth(collector=long, time_unix_ns=0, duration_s=1.0, success=True),
            StepPhases(job="llm", step=1, phases={long: PhaseTime(min_s=1.0, max_s=2.0)}),
            JobDescription(job="llm", framework=long),
        )
        page = page_of(running, clock)
        longest = max(map(len, page))
    assert longest < 1000
    assert refused(page) == {"name_chars", "names_per_scope", "text_chars"}
    assert page['perfd_job_ended{perfd_job="llm"}'] == 0


def test_a_job_without_a_name_is_refused(clock):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1, job=""))
        page = page_of(running, clock)
    assert page["perfd_jobs"] == 0
    assert refused(page) == {"name_chars"}


@pytest.mark.parametrize("field", ["node", "agent_id"])
def test_an_agent_with_a_long_name_is_turned_away_with_the_reason(clock, field):
    with aggregator(clock) as running:
        with FakeAgent(running.grpc_address, **{field: "x" * 257}) as agent:
            with pytest.raises(grpc.RpcError):
                agent.hello()
            assert "at most 256 characters" in agent.reason
        assert 'perfd_agent_up{node="x' not in running.page().decode()


def test_beyond_the_bound_of_all_series_the_aggregator_still_reports_itself(clock):
    with (
        aggregator(clock, limits=Limits(series=150)) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(place(0, 0), gpus(START_S, count=8, **{f"m{number}": 1.0 for number in range(20)}))
        page_of(running, clock)
        page = page_of(running, clock)
    assert len(page) <= 150
    assert page['perfd_rejected_total{bound="series"}'] >= 160
    assert not any(name.startswith("perfd_gpu_") for name in page)


def test_an_agent_that_is_long_gone_leaves_the_page_and_one_that_may_return_does_not(clock, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "history.sqlite"))
    with aggregator(clock, history=history) as running:
        for node in ("left", "stays"):
            with FakeAgent(running.grpc_address, node=node, agent_id=node) as agent:
                agent.hello()
                agent.send(step(1))
            clock.advance(3000.0)
        page = page_of(running, clock)
        assert 'perfd_agent_up{node="left"}' not in page
        assert 'perfd_agent_up{node="stays"}' in page
    with aggregator(clock, history=history) as running:
        page = page_of(running, clock)
        assert 'perfd_agent_up{node="left"}' not in page
        assert page['perfd_agent_up{node="stays"}'] == 0
        assert page['perfd_agent_silent_seconds{node="stays"}'] == pytest.approx(3001, abs=2)


def test_a_limit_that_leaves_nothing_out_is_not_logged(caplog) -> None:
    rejected = AggregatorCounters().rejected
    rejected["series"] += 0
    assert not caplog.records
    rejected["series"] += 2
    rejected["series"] += 1
    assert [record.message for record in caplog.records] == [
        "Data beyond a limit is left out; perfd_rejected_total counts it."
    ]
