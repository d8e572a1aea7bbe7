"""What the interface has for people's eyes: short rows, serving engines, events and reports."""

import dataclasses
import http.client
import json
import os
import re
import threading
import urllib.request

import pytest
from aggregator.support import START_S, aggregator, gpus, place, step
from exporters.rounds import job_round
from exporters.support import until

from perfd.aggregator.limits import Limits
from perfd.aggregator.web_api.api_documents import wandb_run
from perfd.aggregator.web_api.report_routes import report_routes
from perfd.analysis.diagnosis import summarise
from perfd.analysis.steps import StepBreakdown
from perfd.cli import aggregator_client
from perfd.cli.aggregator_client import get_jobs
from perfd.clock import VirtualClock
from perfd.config import HistoryConfig, PageLinksConfig, RulesConfig
from perfd.errors import ConfigError
from perfd.model import (
    Event,
    EventKind,
    JobDescription,
    ParallelLayout,
    SampleTable,
    Scope,
    ServerInfo,
    ServerRole,
)
from perfd.net.http import HttpServer
from perfd.report.render.finding_png import finding_picture
from perfd.report.render.page_script import SCRIPT_SOURCE
from tests.support.fake_agent import FakeAgent


def ask(address, path):
    # Unlike urllib, this sends a path as it is, and errors are answers.
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def api(running, path):
    status, _, body = ask(running.http_address, f"/api/v1/{path}")
    assert status == 200, body
    return json.loads(body)


def servers(*entities, **columns):
    return SampleTable(
        scope=Scope.SERVER,
        times_unix_ns=[round(START_S * 1e9)] * len(entities),
        entities=entities,
        columns={name: [value] * len(entities) for name, value in columns.items()},
    )


# Jobs


def test_links_are_those_of_the_configuration():
    links = PageLinksConfig(job={"Grafana": "https://g.org/{job}"})
    with aggregator(http_listen="127.0.0.1:0", links=links) as running:
        assert api(running, "links") == {
            "schema": "perfd.links/1",
            "links": {"job": {"Grafana": "https://g.org/{job}"}, "rank": {}, "node": {}, "log": {}},
        }
    with (
        pytest.raises(ConfigError, match=r"links\.node\.X"),
        aggregator(links=PageLinksConfig(node={"X": "https://g.org/{job}"})),
    ):
        pass


RUN = {"entity": "team", "project": "proj", "run_id": "2v1"}


@pytest.mark.parametrize(
    ("named", "run"),
    [
        ("https://wandb.ai/team/proj/runs/2v1", {**RUN, "url": "https://wandb.ai/team/proj/runs/2v1"}),
        ("https://a.wandb.io/team/proj/runs/2v1", {**RUN, "url": "https://a.wandb.io/team/proj/runs/2v1"}),
        ("https://wandb.example.org/team/proj/runs/2v1", {**RUN, "url": None}),
        ("https://notwandb.ai/team/proj/runs/2v1", {**RUN, "url": None}),
        (
            "https://wandb.ai:8080/team/proj/runs/2v1",
            {**RUN, "url": "https://wandb.ai:8080/team/proj/runs/2v1"},
        ),
        ("team/proj/runs/2v1", {**RUN, "url": None}),
        ("proj/runs/2v1", {**RUN, "entity": None, "url": None}),
        ("https://user@wandb.ai/team/proj/runs/2v1", None),
        ("https://wandb.ai/team/proj/runs/2v1?x", None),
        ("javascript:alert(1)", None),
        ("", None),
    ],
)
def test_a_run_of_wandb_is_a_link_only_to_servers_of_wandb(named, run):
    assert wandb_run(named) == run


def test_a_job_s_entry_has_its_run_of_wandb():
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(JobDescription(job="llm", framework="", wandb_run="https://wandb.ai/team/proj/runs/2v1"))
        agent.send(step(1))
        agent.send(step(1, job="other"))
        running.tick()
        jobs = {entry["name"]: entry for entry in api(running, "jobs")["jobs"]}
    assert jobs["llm"]["wandb"] == {**RUN, "url": "https://wandb.ai/team/proj/runs/2v1"}
    assert jobs["other"]["wandb"] is None


def test_a_row_of_the_fleet_says_what_the_whole_entry_says():
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        layout = ParallelLayout(world_size=4, pp=2, tp=1, dp=2)
        agent.send(JobDescription(job="llm", framework="megatron-lm", parallel=layout, train_steps=100))
        agent.send(*(step(number, time_s=number, tokens_per_s=1000.0) for number in range(1, 20)))
        agent.send(step(1, job="other"), *(gpus(time_s, sm_active_ratio=0.5) for time_s in range(20)))
        running.tick()
        fleet, whole = api(running, "fleet"), api(running, "jobs?job=llm")
        rows = {row["name"]: row for row in fleet["jobs"]}
        (entry,) = whole["jobs"]
        nobody = api(running, "jobs?job=nobody")

    assert fleet["schema"] == "perfd.fleet/2"
    assert set(rows) == {"llm", "other"}
    row = rows["llm"]
    assert {name: row[name] for name in ("framework", "parallel", "train_steps", "ended")} == {
        name: entry[name] for name in ("framework", "parallel", "train_steps", "ended")
    }
    assert row["step"] == entry["steps"]["last"] == 19
    assert row["step_time_s"] == entry["step_time_s"]["median"]
    assert row["tokens_per_s"] == entry["efficiency"]["tokens_per_s"] == 1000.0
    assert row["bottleneck"]["kind"] == entry["bottleneck"]["kind"]
    assert row["firing_alerts"] == 0
    assert fleet["agents"] == {"count": 1, "connected": 1}
    assert fleet["servers"] == {"count": 0, "up": 0}
    assert nobody["jobs"] == []


def test_alerts_can_be_those_of_one_job(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: g, rules: [{alert: Fast, expr: perfd_step_time_seconds < 9}]}]")
    clock = VirtualClock(round(START_S * 1e9))
    config = {"rules": RulesConfig(builtin=False, files=[str(rules)])}
    with (
        aggregator(clock, http_listen="127.0.0.1:0", **config) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        clock.advance(10.0)
        for job in ("a", "b"):
            agent.send(*(step(number, job=job, time_s=number) for number in range(1, 20)))
        running.tick()
        every, one = api(running, "alerts"), api(running, "alerts?job=b")
        rows = api(running, "fleet")["jobs"]

    assert {alert["job"] for alert in every["alerts"]} == {"a", "b"}
    assert {alert["job"] for alert in one["alerts"]} == {"b"}
    assert [row["firing_alerts"] for row in rows] == [1, 1]


# Serving engines


def test_servers_have_their_latencies_theory_and_the_alerts_about_them(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Queue, expr: perfd_server_queued_requests > 5, "
        "annotations: {summary: They wait, description: Admit more.}}]}]"
    )
    clock = VirtualClock(round(START_S * 1e9))
    config = {"rules": RulesConfig(builtin=False, files=[str(rules)])}
    with (
        aggregator(clock, http_listen="127.0.0.1:0", **config) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        clock.advance(10.0)
        agent.send(
            servers("h:2", up=1.0, queued_requests=9.0, tpot_p50_s=0.012, tpot_theory_s=0.011),
            servers("h:1", up=0.0),
        )
        running.tick()
        answer, fleet = api(running, "servers"), api(running, "fleet")

    assert answer["schema"] == "perfd.servers/2"
    down, busy = answer["servers"]
    assert (down["server"], down["up"], down["theory"], down["findings"]) == ("h:1", False, None, [])
    assert down["running_requests"] is None
    assert (busy["server"], busy["up"], busy["queued_requests"]) == ("h:2", True, 9.0)
    assert busy["tpot_s"] == {"p50": 0.012, "p90": None, "p99": None, "mean": None}
    assert busy["theory"]["tpot_theory_s"] == 0.011
    assert busy["findings"] == [{"name": "Queue", "summary": "They wait", "advice": "Admit more."}]
    assert fleet["servers"] == {"count": 2, "up": 1}
    assert fleet["alerts"] == [{"name": "Queue", "summary": "They wait"}]


def test_a_server_of_which_nothing_new_is_received_keeps_no_number():
    clock = VirtualClock(round(START_S * 1e9))
    with (
        aggregator(clock, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(servers("h:1", up=1.0, running_requests=3.0))
        clock.advance(100.0)
        (server,) = api(running, "servers")["servers"]

    assert (server["up"], server["running_requests"]) == (None, None)
    assert server["silent_s"] == 100.0


QWEN = ServerInfo(
    server="h:1",
    engine="sglang",
    version="0.5.9",
    model="Qwen/Qwen3-32B",
    parallel=ParallelLayout(tp=4, pp=1, dp=2),
    role=ServerRole.PREFILL,
)


def info_series(running):
    status, _, page = ask(running.http_address, "/metrics")
    assert status == 200
    return [line for line in page.splitlines() if line.startswith("perfd_server_info{")]


def test_a_server_says_what_it_is_until_it_is_something_else():
    clock = VirtualClock(round(START_S * 1e9))
    with (
        aggregator(clock, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(QWEN, servers("h:1", "h:2", up=1.0))
        running.tick()
        known, unknown = api(running, "servers")["servers"]
        series = info_series(running)
        agent.send(dataclasses.replace(QWEN, engine="vllm", version=None, model="m" * 300))
        running.tick()
        changed = api(running, "servers")["servers"][0]
        changed_series = info_series(running)
        clock.advance(100.0)
        running.tick()
        silent_series = info_series(running)

    assert {name: known[name] for name in ("engine", "version", "model", "role", "parallel")} == {
        "engine": "sglang",
        "version": "0.5.9",
        "model": "Qwen/Qwen3-32B",
        "role": "prefill",
        "parallel": {"tp": 4, "pp": 1, "dp": 2},
    }
    assert (unknown["engine"], unknown["model"], unknown["parallel"]["tp"]) == (None, None, None)
    labels = 'engine="sglang",model="Qwen/Qwen3-32B",node="node0",server="h:1",version="0.5.9"'
    assert series == [f"perfd_server_info{{{labels}}} 1.0"]
    assert (changed["engine"], changed["version"], changed["model"]) == ("vllm", None, None)
    assert changed_series == ['perfd_server_info{engine="vllm",node="node0",server="h:1"} 1.0']
    assert silent_series == []


def test_a_rule_can_ask_which_engine_a_server_is(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Queue, expr: '(perfd_server_queued_requests > 5) "
        "* on (node, server) group_left (engine) perfd_server_info', "
        'annotations: {summary: "{{ $labels.engine }} has {{ $value }}"}}]}]'
    )
    clock = VirtualClock(round(START_S * 1e9))
    config = {"rules": RulesConfig(builtin=False, files=[str(rules)])}
    with (
        aggregator(clock, http_listen="127.0.0.1:0", **config) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        clock.advance(10.0)
        agent.send(QWEN, servers("h:1", "h:2", queued_requests=9.0))
        running.tick()
        known, unknown = api(running, "servers")["servers"]

    assert [finding["summary"] for finding in known["findings"]] == ["sglang has 9"]
    assert unknown["findings"] == []


def test_a_node_with_ever_new_servers_keeps_the_newest():
    clock = VirtualClock(round(START_S * 1e9))
    limits = Limits(entities_per_scope=4)
    with (
        aggregator(clock, limits=limits, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(*(dataclasses.replace(QWEN, server=f"h:{port}") for port in range(9)))
        agent.send(servers("h:0", "h:8", up=1.0))
        oldest, newest = api(running, "servers")["servers"]

    assert (oldest["engine"], newest["engine"]) == (None, "sglang")


# Events


def test_a_round_is_an_event():
    with aggregator(http_listen="127.0.0.1:0") as running:
        connection = http.client.HTTPConnection(running.http_address, timeout=20)
        connection.request("GET", "/api/v1/events")
        answer = connection.getresponse()
        seen = []
        while len(seen) < 2:
            line = answer.readline()
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:])["round"])
                running.tick()
        connection.close()

    assert seen[1] == seen[0] + 1


# Reports


class Captures:
    """A source that knows one job, and captures as they are given."""

    def __init__(self, *captures):
        self._captures = captures

    def summary(self, job=None):
        return []

    def stored_summary(self, job):
        return None

    def captures(self):
        return list(self._captures)


def capture(capture_id, *paths, node="n1"):
    files = [{"path": str(path), "size_bytes": 1} for path in paths]
    return {"id": capture_id, "job": "llm", "ranks": [{"rank": 0, "node": node, "files": files}]}


def report_in(folder, text="<h1>Where the time went</h1>"):
    folder.mkdir(parents=True)
    (folder / "perfd.report.html").write_text(text)
    return folder / "rank0.sqlite"


@pytest.fixture
def reports():
    """Serve the reports of captures; returns a function that asks for one."""
    held = []

    def serve(*captures):
        held.append(HttpServer("127.0.0.1:0", report_routes(Captures(*captures))))
        return lambda path: ask(held[-1].address, f"/reports/captures/{path}")

    yield serve
    for server in held:
        server.close()


def test_the_report_of_a_job_is_made_of_its_summary():
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*(step(number, job="<b>j", time_s=number) for number in range(1, 20)))
        running.tick()
        status, headers, body = ask(running.http_address, "/reports/jobs/%3Cb%3Ej")
        missing = ask(running.http_address, "/reports/jobs/%3Cscript%3E")

    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "How job &lt;b&gt;j runs" in body
    assert "sandbox" in headers["Content-Security-Policy"]
    assert missing[0] == 404
    assert "<script>" not in missing[2]


@pytest.mark.parametrize(
    ("path", "step_time_of"),
    [
        ("fleet", lambda row: row["step_time_s"]),
        ("jobs?sort=name", lambda entry: entry["step_time_s"]["median"]),
    ],
)
def test_the_list_of_jobs_makes_no_numbers_that_rounds_make(path, step_time_of):
    def step_times(running):
        return {row["name"]: step_time_of(row) for row in api(running, path)["jobs"]}

    names = [f"job-{at:02}" for at in range(40)]
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*(step(at, job=name, time_s=at) for name in names for at in range(1, 20)))
        early = step_times(running)
        running.tick()
        first = step_times(running)
        agent.send(*(step(at, job=names[0], time_s=20 + 5 * at, step_time_s=5.0) for at in range(20, 60)))
        unchanged = step_times(running)
        running.tick()
        after = step_times(running)

    # The first few jobs without a summary are analyzed for the answer.
    assert 0 < sum(known is not None for known in early.values()) < len(names)
    assert list(early) == list(first) == list(unchanged) == names
    assert unchanged == first
    assert after[names[0]] != first[names[0]]


def test_lists_of_jobs_wait_for_no_round(monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(data, settings):
        if data.name == "new":
            begun.set()
            assert go_on.wait(60)
        return summarise(data, settings)

    monkeypatch.setattr("perfd.aggregator.state.derived_numbers.summarise", slow)
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*(step(at, job="old", time_s=at) for at in range(1, 20)))
        running.tick()
        agent.send(*(step(at, job="new", time_s=at) for at in range(1, 20)))
        tick = threading.Thread(target=running.tick)
        tick.start()
        try:
            assert begun.wait(60)
            rows = {row["name"]: row for row in api(running, "fleet")["jobs"]}
            whole = {entry["name"]: entry for entry in api(running, "jobs")["jobs"]}
            short = {entry["name"]: entry for entry in api(running, "jobs?short=1")["jobs"]}
            assert api(running, "jobs?job=old")["jobs"][0]["name"] == "old"
        finally:
            go_on.set()
            tick.join()
        after = {row["name"]: row["analyzed"] for row in api(running, "jobs")["jobs"]}
    for entries in (rows, whole, short):
        assert {name: one["analyzed"] for name, one in entries.items()} == {"old": True, "new": False}
        assert entries["new"]["bottleneck"]["name"] == "not analyzed yet"
        assert entries["new"]["bottleneck"]["kind"] == "unknown"
    assert (rows["new"]["step"], whole["new"]["steps"]) == (19, {"count": 19, "last": 19, "doubt": None})
    assert short["new"]["gpu_count"] == 0
    assert after == {"old": True, "new": True}


def test_what_is_asked_of_one_job_waits_for_no_round(monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def held(data, settings):
        if threading.current_thread().name == "round":
            begun.set()
            assert go_on.wait(60)
        return summarise(data, settings)

    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(*(step(at, job="old", time_s=at) for at in range(1, 20)), place(0, 0, job="old"))
        running.tick()
        before = {what: api(running, f"jobs/old{what}") for what in ("", "/series", "/ranks", "/peers")}
        monkeypatch.setattr("perfd.aggregator.state.derived_numbers.summarise", held)
        agent.send(*(step(at, job="old", time_s=at) for at in range(20, 22)))
        agent.send(*(step(at, job="new", time_s=at) for at in range(1, 20)), place(0, 1, job="new"))
        tick = threading.Thread(target=running.tick, name="round")
        tick.start()
        try:
            assert begun.wait(60)
            during = {what: api(running, f"jobs/old{what}") for what in before}
            since = api(running, "jobs/old?since=1")
            new = {what: api(running, f"jobs/new{what}") for what in ("", "/series", "/gpu_series", "/steps")}
            (unknown,) = api(running, "jobs?job=new")["jobs"]
            (known,) = api(running, "jobs?job=old")["jobs"]
            view = running._rounds.view("old")
        finally:
            go_on.set()
            tick.join()
        (after,) = api(running, "jobs?job=old")["jobs"]

    # What only the job's own lines say is of now; its live numbers are those of the last round.
    assert during["/ranks"] == before["/ranks"]
    assert during["/peers"] == before["/peers"]
    assert [len(one["/series"]["step"]) for one in (before, during)] == [19, 21]
    assert [one[""]["jobs"][0]["steps"]["count"] for one in (before, during)] == [19, 21]
    assert since["jobs"][0]["steps"]["count"] == 21
    assert (known["analyzed"], unknown["analyzed"], after["analyzed"]) == (True, False, True)
    assert new[""]["jobs"][0]["steps"]["count"] == 19
    assert len(new["/series"]["step"]) == len(new["/steps"]["steps"]) == 19
    assert [rank.rank for rank in view.ranks] == [0]


def test_the_list_of_jobs_has_pages_filters_and_orders_of_the_fleet(monkeypatch):
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        names = [f"job-{at}" for at in range(12)]
        agent.send(*(step(at, job=name, time_s=at) for name in names for at in range(1, 4)))
        running.tick()
        second = api(running, "jobs?sort=name&limit=5&offset=5")
        assert [entry["name"] for entry in second["jobs"]] == names[5:10]
        assert second["page"] == {"offset": 5, "limit": 5, "matched": 12, "total": 12}
        found = api(running, "jobs?q=job-11&short=1")
        assert [entry["name"] for entry in found["jobs"]] == ["job-11"]
        assert api(running, "jobs?state=ended")["jobs"] == []
        assert len(api(running, "jobs")["jobs"]) == 12
        assert ask(running.http_address, "/api/v1/jobs?limit=0")[0] == 400
        monkeypatch.setattr(aggregator_client, "_JOBS_PER_PAGE", 5)
        paged = [entry["name"] for entry in get_jobs(f"http://{running.http_address}")]
    assert paged == names


def test_ended_jobs_of_history_follow_those_in_memory(tmp_path):
    clock = VirtualClock(round(START_S * 1e9))

    def run(agent, name, end):
        agent.send(*(step(at, job=name, time_s=at) for at in range(1, 20)), sent_unix_ns=clock.unix_ns())
        running.tick()
        ended = Event(
            kind=EventKind.JOB_ENDED, time_unix_ns=clock.unix_ns(), message="", job=name, values=end
        )
        agent.send(ended, sent_unix_ns=clock.unix_ns())
        running.tick()

    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    with (
        aggregator(clock, history=history, job_forgotten_after_s=60.0, http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        for name in ("first", "second"):
            run(agent, name, {"exit_code": 0.0})
            clock.advance(61.0)
            running.tick()
        run(agent, "third", {"exit_code": 1.0})
        until(lambda: len(api(running, "fleet?state=ended")["jobs"]) == 3)
        rows = api(running, "fleet?state=ended")
        entries = api(running, "jobs?state=ended")
        second = api(running, "jobs?state=ended&offset=1&limit=1&short=1")
        found = api(running, "fleet?state=ended&q=FIR&limit=5")
        others = [api(running, f"fleet?{query}")["jobs"] for query in ("", "state=running", "q=first")]
        by_cause = api(running, "fleet?state=ended&cause=none")["page"]

    names = ["third", "second", "first"]
    for listed in (rows, entries):
        assert [(one["name"], one["outcome"]) for one in listed["jobs"]] == [
            ("third", "failed"),
            ("second", "completed"),
            ("first", "completed"),
        ]
        assert listed["page"] == {"offset": 0, "limit": None, "matched": 3, "total": 3}
    assert rows["stored"]
    # A job looks the same in memory and in history, where nothing but the summary is left.
    assert rows["jobs"][0].keys() == rows["jobs"][1].keys()
    assert {**entries["jobs"][1]}.keys() == entries["jobs"][0].keys()
    same = ("step", "step_time_s", "state", "ended", "analyzed", "bottleneck")
    assert [rows["jobs"][0][key] for key in same] == [rows["jobs"][1][key] for key in same]
    assert entries["jobs"][1]["steps"] == {"count": 19, "last": 19, "doubt": None}
    assert [one["name"] for one in second["jobs"]] == names[1:2]
    assert second["page"] == {"offset": 1, "limit": 1, "matched": 3, "total": 3}
    assert second["jobs"][0]["gpu_count"] == 0
    assert [one["name"] for one in found["jobs"]] == ["first"]
    assert [[row["name"] for row in jobs] for jobs in others] == [["third"], [], []]
    assert by_cause["total"] == 1


def test_the_picture_of_a_job_is_a_png_and_of_no_other_file():
    class Jobs(Captures):
        def summary(self, job=None):
            known = {"a/b": StepBreakdown(forward_ratio=0.5, backward_ratio=0.4), "bare": StepBreakdown()}
            one = job_round(7, name=job).summary
            return [dataclasses.replace(one, breakdown=known[job])] if job in known else []

        def stored_summary(self, job):
            return None

    server = HttpServer("127.0.0.1:0", report_routes(Jobs()))
    try:
        with urllib.request.urlopen(
            f"http://{server.address}/reports/pictures/a%2Fb.png", timeout=20
        ) as answer:
            kind, picture = answer.headers["Content-Type"], answer.read()
        absent = [
            ask(server.address, f"/reports/pictures/{name}")[0]
            for name in ("a%2Fb", "bare.png", "other.png", ".png", "a%2Fb.png.png")
        ]
    finally:
        server.close()

    assert (kind, picture) == ("image/png", finding_picture(Jobs().summary("a/b")[0]).png)
    assert absent == [404] * 5


def test_a_report_that_can_be_read_here_is_shown_and_can_do_nothing(reports, tmp_path):
    get = reports(capture("c1", report_in(tmp_path / "c1")))
    status, headers, body = get("c1")

    assert (status, body) == (200, "<h1>Where the time went</h1>")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    parts = [part.strip() for part in policy.split(";")]
    # Nothing but the script that zooms, by its hash, and that without the page's origin.
    assert "sandbox allow-scripts" in parts
    assert [part for part in parts if part.startswith("script")] == [f"script-src {SCRIPT_SOURCE}"]
    assert re.fullmatch("'sha256-[A-Za-z0-9+/]{43}='", SCRIPT_SOURCE)


def test_reports_in_several_folders_are_listed(reports, tmp_path):
    first, second = (report_in(tmp_path / name / "c1", name) for name in ("n1", "n2"))
    get = reports(capture("c1", first, second))

    # Below /reports/captures/, so that it also works below a proxy's path.
    assert 'href="c1/2"' in get("c1")[2]
    assert (get("c1/1")[2], get("c1/2")[2]) == ("n1", "n2")
    assert get("c1/3")[0] == get("c1/0")[0] == get("c1/x")[0] == 404


def test_without_a_report_it_is_said_how_to_make_one(reports, tmp_path):
    get = reports(capture("c1", tmp_path / "c1" / "rank0.sqlite", node="<b>"), capture("c2"))
    status, _, body = get("c1")

    assert status == 404
    assert "perfd capture show c1 --analyze" in body
    assert "on &lt;b&gt;." in body
    assert "This capture left no files." in get("c2")[2]
    assert "There is no capture &#x27;c3&#x27;" in get("c3")[2]


def test_nothing_but_a_report_of_that_capture_is_ever_read(reports, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "perfd.report.html").symlink_to(secret)
    (tmp_path / "folder" / "perfd.report.html").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "perfd.report.html")
    elsewhere = report_in(tmp_path / "elsewhere", "secret")
    get = reports(
        capture("link", tmp_path / "link" / "a.sqlite"),
        capture("folder", tmp_path / "folder" / "a.sqlite"),
        capture("pipe", tmp_path / "pipe" / "a.sqlite"),
        # An agent that names the folder of something else.
        capture("mine", elsewhere),
        capture("elsewhere", f"{tmp_path}/x/../elsewhere/a.sqlite", "elsewhere/a.sqlite", "a.sqlite"),
        capture("..", f"{tmp_path}/elsewhere/../a.sqlite"),
    )

    for name in ("link", "folder", "pipe", "mine", "elsewhere", "..", "elsewhere/../mine", "%2e%2e"):
        status, _, body = get(name)
        assert status == 404, name
        assert "secret" not in body, name


class Hanging(dict):
    """A capture whose files nobody hears of until `back` is set, as on a file system that hangs."""

    def __init__(self, *args):
        super().__init__(*args)
        self.back = threading.Event()

    def __getitem__(self, key):
        if key == "ranks":
            self.back.wait()
        return super().__getitem__(key)


def test_a_file_system_that_hangs_is_waited_for_no_longer_than_one_may(tmp_path):
    hanging = Hanging(capture("c1", report_in(tmp_path / "c1")))
    server = HttpServer("127.0.0.1:0", report_routes(Captures(hanging), file_timeout_s=0.05))
    try:
        status, _, body = ask(server.address, "/reports/captures/c1")
        hanging.back.set()
        until(lambda: ask(server.address, "/reports/captures/c1")[0] == 200)
    finally:
        hanging.back.set()
        server.close()
    assert status == 503
    assert "does not answer" in body
