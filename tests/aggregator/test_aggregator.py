"""The aggregator as a whole: rounds, restarts, alerts, captures, HTTP."""

import http.client
import json
import logging
import shutil
from urllib.parse import quote

import pytest
from aggregator.support import START_S, aggregator, gpus, place, step, values
from exporters.support import until

from perfd.aggregator import Aggregator
from perfd.aggregator.limits import Limits
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, AnalysisConfig, CaptureProfile, HistoryConfig, RulesConfig
from perfd.errors import ConfigError, RulesError
from perfd.model import (
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    Event,
    EventKind,
    JobDescription,
    ParallelLayout,
)
from tests.support.fake_agent import FakeAgent

RULES = """
groups:
- name: test
  rules:
  - record: job:step_time:double
    expr: perfd_step_time_seconds * 2
  - alert: Slow
    expr: perfd_step_time_last_seconds > 5
    labels: {capture: default, severity: warning}
    annotations: {summary: "{{ $labels.perfd_job }} is slow"}
"""


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return RulesConfig(builtin=False, files=[str(path)], interval_s=1.0)


def feed(agent, clock, running, numbers, **fields):
    """Steps, one a second, with a round after each."""
    for number in numbers:
        clock.advance(1.0)
        line = step(number, time_s=clock.unix_ns() / 1e9, **fields)
        agent.send(line, gpus(clock.unix_ns() / 1e9, power_w=500.0), sent_unix_ns=clock.unix_ns())
        running.tick()


def get(running, path, *, status=200, body=None):
    connection = http.client.HTTPConnection(running.http_address, timeout=20)
    try:
        sent = {} if body is None else {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), sent)
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    assert response.status == status, data
    kind = response.headers["Content-Type"]
    return json.loads(data) if kind.startswith("application/json") else data.decode()


def test_a_restart_goes_on_with_the_same_numbers(clock, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    described = JobDescription(job="llm", framework="nemo", parallel=ParallelLayout(world_size=1))
    with aggregator(clock, history=history) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(described)
        feed(agent, clock, running, range(1, 41), step_time_s=1.0)
        (before,) = running.summary()
    with aggregator(clock, history=history) as running:
        running.tick()
        (after,) = running.summary()
        assert (after.framework, after.steps, after.step_time_s) == (
            before.framework,
            before.steps,
            before.step_time_s,
        )
        with FakeAgent(running.grpc_address) as agent:
            assert agent.hello().last_sequence == 41
            agent.sequence = 41
            feed(agent, clock, running, [41], step_time_s=1.0)
        assert running.summary()[0].steps.last == 41
        assert values(running.page())["perfd_lost_batches_total"] == 0


def test_a_killed_aggregator_loses_nothing_that_it_acknowledged(clock, tmp_path):
    path, left = tmp_path / "h.sqlite", tmp_path / "left.sqlite"
    with (
        aggregator(clock, history=HistoryConfig(path=str(path))) as killed,
        FakeAgent(killed.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(step(1))
        agent.send(step(2))
        # It is still running, and has not been told to end, when the next one has what is in its files.
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
        with aggregator(clock, history=HistoryConfig(path=str(left))) as running:
            assert running.steps("llm", 0, 10)[-1]["step"] == 2
            assert running.state.fleet.jobs["llm"].steps.last_step == 2


def test_a_round_without_news_makes_nothing_anew(clock):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        feed(agent, clock, running, range(1, 10))
        keys = running.frames()["jobs"].keys
        live = running.live("llm")
        running.tick()
        assert running.live("llm") is live
        assert running.frames()["jobs"].keys is keys


def test_series_of_agents_stay_the_same_whichever_agent_sent_last(clock):
    with (
        aggregator(clock) as running,
        FakeAgent(running.grpc_address, node="a", agent_id="a") as one,
        FakeAgent(running.grpc_address, node="b", agent_id="b") as other,
    ):
        for agent in (one, other):
            agent.hello()
            agent.send()
        running.tick()
        keys = running.frames()["agents"].keys
        for agent in (one, other, one):
            clock.advance(1.0)
            agent.send()
            running.tick()
            assert running.frames()["agents"].keys is keys


def test_one_round_gives_the_same_page_however_often_it_is_asked_for(clock):
    def perfds(page):
        return {name: value for name, value in values(page).items() if name.startswith("perfd_")}

    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        feed(agent, clock, running, range(1, 10))
        assert perfds(running.page()) == perfds(running.page())


def test_a_regression_is_measured_against_what_came_before(clock):
    with (
        aggregator(clock, analysis=AnalysisConfig(window_steps=40)) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        feed(agent, clock, running, range(1, 31), step_time_s=1.0)
        feed(agent, clock, running, range(31, 71), step_time_s=1.5)
        found = values(running.page())
    assert found['perfd_step_time_baseline_seconds{perfd_job="llm"}'] == 1.0
    assert found['perfd_step_time_regression_ratio{perfd_job="llm"}'] == pytest.approx(0.5)


def test_a_job_that_is_forgotten_leaves_the_page_and_stays_in_history(clock, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    with (
        aggregator(clock, history=history, job_forgotten_after_s=60.0, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        feed(agent, clock, running, range(1, 10))
        clock.advance(61)
        running.tick()
        assert running.jobs() == []
        assert b'job="llm"' not in running.page()
        # Its last summary was written by another thread; closing it waits for that.
        running._history.close()
        assert get(running, "/api/v1/jobs/llm")["jobs"][0]["steps"]["last"] == 9
        assert get(running, "/api/v1/jobs/llm/steps")["steps"][-1]["step"] == 9


def test_while_an_alert_fires_its_sentence_has_the_newest_value(clock, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES.replace("is slow", "takes {{ $value }} s"))
    config = RulesConfig(builtin=False, files=[str(path)], interval_s=1.0)
    with aggregator(clock, rules=config) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        feed(agent, clock, running, [1, 2], step_time_s=8.0)
        feed(agent, clock, running, [3], step_time_s=9.0)
        (alert,) = running.alerts()
        assert (alert["value"], alert["annotations"]["summary"]) == (9.0, "llm takes 9 s")


def test_an_alert_is_recorded_with_the_step_that_it_began_at_and_starts_a_capture(clock, rules):
    with (
        aggregator(clock, rules=rules, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0))
        feed(agent, clock, running, [1, 2])
        assert running.alerts() == []
        feed(agent, clock, running, [3], step_time_s=9.0)
        request = agent.receive()
        assert isinstance(request, CaptureRequest)
        assert (request.job, request.alert) == ("llm", "Slow")
        (alert,) = get(running, "/api/v1/alerts")["alerts"]
        assert (alert["state"], alert["first_step"], alert["captures"]) == ("firing", 3, [request.capture_id])
        running.tick()
        assert values(running.page())['perfd_alerts_firing{alertname="Slow",perfd_job="llm"}'] == 1.0
        agent.say(
            CaptureStatus(
                capture_id=request.capture_id,
                state=CaptureState.DONE,
                time_unix_ns=clock.unix_ns(),
                ranks=[0],
            )
        )
        feed(agent, clock, running, [4])
        feed(agent, clock, running, [5])
        assert running.alerts()[0]["state"] == "resolved"
        assert get(running, "/api/v1/captures")["captures"][0]["state"] == "done"
        (job,) = running.summary("llm")
        assert [(a.name, a.first_step, a.state, tuple(a.captures)) for a in job.alerts] == [
            ("Slow", 3, "resolved", (request.capture_id,))
        ]
        page = values(running.page())
        assert page['perfd_capture_ranks{perfd_job="llm",state="done"}'] == 1.0
        assert page['perfd_captures{perfd_job="llm",state="done"}'] == 1.0


def test_what_rules_record_is_on_the_page(clock, rules):
    with aggregator(clock, rules=rules) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        feed(agent, clock, running, range(1, 10), step_time_s=1.5)
        assert values(running.page())['job:step_time:double{perfd_job="llm"}'] == 3.0


def test_an_alert_that_fires_during_a_capture_captures_after_it(clock, rules):
    with (
        aggregator(clock, rules=rules, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0))
        feed(agent, clock, running, [1], step_time_s=1.0)
        get(running, "/api/v1/captures", status=202, body={"job": "llm", "id": "by-hand"})
        assert agent.receive().capture_id == "by-hand"
        feed(agent, clock, running, [2, 3], step_time_s=9.0)
        by_hand, refused = running.captures()
        assert (by_hand["state"], refused["state"]) == ("open", "refused")
        assert "it captures then" in refused["reason"]

        agent.say(CaptureStatus(capture_id="by-hand", state=CaptureState.DONE, time_unix_ns=1, ranks=[0]))
        until(lambda: running.captures()[0]["state"] == "done")
        feed(agent, clock, running, [4, 5], step_time_s=9.0)
        assert len(running.captures()) == 2, "a profiler that has just ended is left alone"
        clock.advance(10.0)
        feed(agent, clock, running, [6], step_time_s=9.0)
        request = agent.receive()
        assert request.alert == "Slow"
        assert [one["state"] for one in running.captures()] == ["done", "refused", "open"]
        (alert,) = running.alerts()
        assert alert["captures"] == [refused["id"], request.capture_id]


def test_captures_survive_a_restart(clock, rules, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    with (
        aggregator(clock, rules=rules, history=history) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0))
        feed(agent, clock, running, [1], step_time_s=9.0)
        first = agent.receive()
        assert isinstance(first, CaptureRequest)
    with (
        aggregator(clock, rules=rules, history=history) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        # The alert fires on, which starts no other capture; the agent is asked again.
        [before] = running.captures()
        assert before["state"] == "open"
        agent.hello(tools=[CaptureTool.NSYS])
        assert agent.receive() == first


def test_a_person_can_ask_for_a_capture_over_http(clock):
    with (
        aggregator(
            clock, http_listen="127.0.0.1:0", capture_profiles={"p": CaptureProfile(steps=7)}
        ) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0))
        running.tick()
        made = get(running, "/api/v1/captures", status=202, body={"job": "llm", "profile": "p"})["capture"]
        request = agent.receive()
        assert (request.capture_id, request.steps) == (made["id"], 7)
        refused = get(running, "/api/v1/captures", status=400, body={"job": "other"})
        assert "no job or server 'other'" in refused["error"]


def test_every_path_of_the_interface_answers(clock):
    with (
        aggregator(clock, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        feed(agent, clock, running, range(1, 31), job="a b/ü", loss=2.0)
        name = quote("a b/ü", safe="")
        index = get(running, "/api/v1")
        for path in ("/metrics", "/api/v1/jobs", "/api/v1/alerts", "/api/v1/agents", "/api/v1/captures"):
            assert path in index
            assert get(running, path)
        (job,) = get(running, "/api/v1/jobs")["jobs"]
        assert (job["name"], job["steps"], job["attempt"], job["nodes"]) == (
            "a b/ü",
            {"count": 30, "last": 30, "doubt": None},
            1,
            ["node0"],
        )
        assert get(running, f"/api/v1/jobs/{name}")["schema"] == "perfd.summary/2"
        steps = get(running, f"/api/v1/jobs/{name}/steps?from=29&limit=5")
        assert [(line["step"], line["losses"], line["tokens_per_s"]) for line in steps["steps"]] == [
            (29, {"loss": 2.0}, None),
            (30, {"loss": 2.0}, None),
        ]
        (shown,) = get(running, "/api/v1/agents")["agents"]
        assert (shown["node"], shown["connected"], shown["last_sequence"]) == ("node0", True, 30)
        assert get(running, "/api/v1/healthz") == "ok\n"
        assert get(running, "/api/v1/readyz") == "ready\n"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/jobs/none", 404),
        ("/api/v1/jobs/none/steps", 404),
        ("/api/v1/jobs/llm/steps?from=x", 400),
        ("/api/v1/jobs/llm/steps?limit=0", 400),
        ("/api/v1/jobs/llm/steps?limit=99999", 400),
        ("/api/v1/jobs/llm/other", 404),
        ("/nowhere", 404),
    ],
)
def test_a_wrong_request_gets_a_sentence(clock, path, status):
    with (
        aggregator(clock, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(step(1))
        running.tick()
        assert get(running, path, status=status)["error"].endswith((".", "`."))


def test_history_that_cannot_be_read_is_no_page_of_errors(clock, tmp_path):
    path = tmp_path / "h.sqlite"
    with aggregator(clock, history=HistoryConfig(path=str(path)), http_listen="127.0.0.1:0") as running:
        running._history.close()
        for file in tmp_path.glob("h.sqlite*"):
            file.unlink()
        assert "cannot be read" in get(running, "/api/v1/jobs/x/steps", status=503)["error"]


def test_bounds_of_cardinality_hold_from_the_wire_to_the_page(clock):
    limits = Limits(jobs=2, metrics_per_scope=3, entities_per_scope=2, phases_per_job=1)
    with aggregator(clock, limits=limits) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*(step(1, job=f"job{number}") for number in range(5)))
        agent.send(gpus(START_S, count=5, **{f"m{number}_ratio": 0.5 for number in range(9)}))
        running.tick()
        found = values(running.page())
    assert found['perfd_rejected_total{bound="jobs"}'] == 3
    assert found['perfd_rejected_total{bound="names_per_scope"}'] == 9
    assert sum(name.startswith("perfd_gpu_m") for name in found) == 6
    assert found["perfd_jobs"] == 2


def test_the_end_of_a_job_is_on_its_page(clock):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        feed(agent, clock, running, range(1, 5))
        agent.send(
            Event(kind=EventKind.JOB_ENDED, time_unix_ns=clock.unix_ns(), message="", job="llm"),
            sent_unix_ns=clock.unix_ns(),
        )
        running.tick()
        assert values(running.page())['perfd_job_ended{perfd_job="llm"}'] == 1.0


def test_rules_that_cannot_be_loaded_are_an_error_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("groups: [{name: g, rules: [{alert: A, expr: 'sum('}]}]")
    with pytest.raises(RulesError, match=r"bad\.yaml"), aggregator(rules=RulesConfig(files=[str(path)])):
        pass


@pytest.mark.parametrize(
    ("analysis", "words"),
    [
        (AnalysisConfig(flops_convention="mine"), r"analysis\.flops_convention"),
        (AnalysisConfig(gpu_peaks_file="/nowhere.yaml"), "does not exist"),
    ],
)
def test_an_analysis_that_cannot_be_done_is_an_error_at_once(analysis, words):
    with pytest.raises(ConfigError, match=words), aggregator(analysis=analysis):
        pass


def test_stopping_twice_or_before_the_start_is_legal(clock):
    with aggregator(clock) as running:
        running.stop()


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_rounds_without_a_pause_are_refused(interval_s):
    with pytest.raises(ConfigError, match="round_interval_s"):
        Aggregator(AggregatorConfig(round_interval_s=interval_s))


def test_a_rule_that_names_no_capture_profile_is_a_warning_at_the_start(tmp_path, caplog):
    rules = tmp_path / "mine.yaml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: up == 0, labels: {capture: nosuch}}]}]")
    with caplog.at_level(logging.WARNING):
        Aggregator(AggregatorConfig(rules=RulesConfig(files=[str(rules)])))
    (record,) = (one for one in caplog.records if one.name.startswith("perfd."))
    assert record.reason == (
        "A cannot start a capture: no capture profile 'nosuch'; capture_profiles has:"
        " default, flight_recorder, hang, serving."
    )


def test_the_log_says_once_which_agent_connected(caplog):
    with caplog.at_level(logging.INFO), aggregator() as running:
        for _ in range(2):
            with FakeAgent(running.grpc_address, node="n7") as agent:
                agent.hello()
    said = [record for record in caplog.records if record.message == "An agent connected."]
    assert [(record.node, record.version) for record in said] == [("n7", "test")]


def test_rounds_go_on_by_themselves_and_survive_one_that_fails(caplog):
    config = AggregatorConfig(
        listen="127.0.0.1:0", http_listen=None, rules=RulesConfig(builtin=False), round_interval_s=0.05
    )
    running = Aggregator(config)
    broken = running.state.fleet.nodes
    running.start()
    try:
        with caplog.at_level(logging.ERROR):
            broken["x"] = None
            # Others log, too: gRPC, of a loop that another test closed.
            while not running.state.counters.failed_ticks:
                running._stopping.wait(0.01)
            del broken["x"]
        before = running.state.counters.ticks
        while running.state.counters.ticks < before + 3:
            running._stopping.wait(0.01)
        assert any("tries again" in one.message for one in caplog.records)
    finally:
        running.stop()
