"""One job's, node's or record's failure stays its own, and a page that is not of now is not served."""

import functools
import http.client
import json
import logging
import math
import pkgutil
import re
import sqlite3

import msgspec
import pytest
from aggregator.odd_records import START_NS, STEPS, healthy, records
from aggregator.support import START_S, aggregator, gpus, source, step, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfd.aggregator import Aggregator, configured_analysis
from perfd.aggregator.alerts import alert_evaluation
from perfd.aggregator.failures import Failures, Part
from perfd.aggregator.history.history_rows import rows
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA, WRITES
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.limits import Limits
from perfd.aggregator.series import series_frames
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.analysis.diagnosis import from_json, summarise, to_json
from perfd.analysis.diagnosis.job_summary import failed_summary
from perfd.analysis.findings import Kind
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, AnalysisConfig, HistoryConfig, RulesConfig
from perfd.gpu_peaks import load_peaks
from perfd.model import (
    Batch,
    CaptureTool,
    Event,
    EventKind,
    GpuInfo,
    Hello,
    JobDescription,
    MemoryReport,
    ModelShape,
    MoeShape,
    ParallelLayout,
    PhaseTime,
    Recompute,
    StepPhases,
)
from perfd.report.render.html import to_html
from perfd.report.sources.from_summary import report_of_summary
from perfd.rules.files.rules_loader import builtin_rules
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_message
from tests.support.examples import examples
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


def ask(running, path):
    connection = http.client.HTTPConnection(running.http_address, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def series_of(running, job):
    return {name for name in values(running.page()) if f'job="{job}"' in name}


def failing_for(name, real, name_of):
    """The function, but it fails for one job or node."""

    @functools.wraps(real)
    def failing(*arguments, **options):
        if name_of(*arguments) == name:
            raise ZeroDivisionError("float division by zero")
        return real(*arguments, **options)

    return failing


# Jobs


@pytest.fixture
def two_jobs(clock, tmp_path):
    """A started aggregator with an agent of the jobs `good` and `bad`, and a rule that starts captures."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Steps, expr: perfd_step > 1, labels: {capture: default}}]}]"
    )
    with (
        aggregator(
            clock,
            history=HistoryConfig(path=str(tmp_path / "h.sqlite")),
            http_listen="127.0.0.1:0",
            rules=RulesConfig(builtin=False, files=[str(rules)], interval_s=1.0),
        ) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(step(1, job="bad"), step(1, job="good"))
        running.tick()
        agent.send(step(2, job="bad"), step(2, job="good"))
        clock.advance(1.0)
        yield running


@pytest.fixture
def broken_analysis(monkeypatch):
    broken = failing_for("bad", summarise, lambda data, _: data.name)
    monkeypatch.setattr("perfd.aggregator.state.derived_numbers.summarise", broken)


def test_a_job_whose_analysis_fails_is_marked_and_all_others_go_on(two_jobs, broken_analysis, caplog):
    assert len(series_of(two_jobs, "bad")) > 1
    with caplog.at_level(logging.ERROR):
        two_jobs.tick()
        two_jobs.tick()
    page = values(two_jobs.page())
    assert page['perfd_step{perfd_job="good"}'] == 2
    assert page['perfd_failures_total{part="analysis"}'] == 2
    assert page["perfd_failed_ticks_total"] == 0
    assert series_of(two_jobs, "bad") == {'perfd_job_failing{part="analysis",perfd_job="bad"}'}
    (logged,) = (one for one in caplog.records if one.name.startswith("perfd."))
    assert (logged.part, logged.job, logged.exc_info[0]) == ("analysis", "bad", ZeroDivisionError)
    assert [alert["job"] for alert in two_jobs.alerts()] == ["good"]
    assert [capture["job"] for capture in two_jobs.captures()] == ["good"]


def test_a_job_whose_analysis_works_again_is_no_longer_marked(two_jobs):
    with pytest.MonkeyPatch.context() as patch:
        broken = failing_for("bad", summarise, lambda data, _: data.name)
        patch.setattr("perfd.aggregator.state.derived_numbers.summarise", broken)
        two_jobs.tick()
    two_jobs.tick()
    page = values(two_jobs.page())
    assert page['perfd_step{perfd_job="bad"}'] == 2
    assert 'perfd_job_failing{part="analysis",perfd_job="bad"}' not in page
    assert page['perfd_failures_total{part="analysis"}'] == 1


def test_the_interface_says_why_a_job_has_no_numbers(two_jobs, broken_analysis):
    two_jobs.tick()
    jobs = {job["name"]: job for job in json.loads(ask(two_jobs, "/api/v1/jobs")[1])["jobs"]}
    assert jobs["good"]["failure"] is None
    said = re.fullmatch(
        r"analysis failed: (ZeroDivisionError in test_bulkheads\.py, line \d+\.)", jobs["bad"]["failure"]
    )
    assert jobs["bad"]["bottleneck"]["kind"] == "analysis_failed"
    assert jobs["bad"]["bottleneck"]["evidence"] == [f"Analysis failed: {said[1]}"]
    assert jobs["bad"]["steps"] == {"count": 2, "last": 2, "doubt": None}
    fleet = {row["name"]: row for row in json.loads(ask(two_jobs, "/api/v1/fleet")[1])["jobs"]}
    assert fleet["bad"]["bottleneck"]["kind"] == "analysis_failed"
    assert fleet["good"]["bottleneck"]["kind"] != "analysis_failed"
    for path in ("/api/v1/jobs/bad", "/api/v1/jobs/bad?since=1", "/reports/jobs/bad"):
        status, body = ask(two_jobs, path)
        assert (status, said[1] in body) == (200, True), path
    assert ask(two_jobs, "/api/v1/jobs/bad/series")[0] == 200
    assert ask(two_jobs, "/api/v1/jobs/nosuch")[0] == 404


@pytest.mark.parametrize(
    ("place", "name_of", "part"),
    [
        ("perfd.aggregator.series.series_frames.derived_values", lambda data, *_: data.name, "series"),
        ("perfd.aggregator.analysis_loop.job_view", lambda _, data, *__: data.name, "capture"),
        ("perfd.aggregator.history.history_recorder.summary_row", lambda name, *_: name, "history"),
        ("perfd.aggregator.captures.capture_service.CaptureService.captured", lambda _, name: name, "traces"),
        (
            "perfd.aggregator.job_summaries.JobSummaries.step_time_change",
            lambda _, name: name,
            "facts",
        ),
        ("perfd.aggregator.api_answers.job_json", lambda job, *_: job.name, "overview"),
        ("perfd.aggregator.web_api.api_documents._fleet_row", lambda job, *_: job.name, "fleet"),
    ],
)
def test_what_else_fails_of_a_job_stops_no_other_job(two_jobs, clock, monkeypatch, place, name_of, part):
    monkeypatch.setattr(place, failing_for("bad", pkgutil.resolve_name(place), name_of))
    clock.advance(61.0)
    two_jobs.tick()
    assert "good" in [job["name"] for job in two_jobs.overview()]
    assert "good" in [job["name"] for job in two_jobs.fleet()["jobs"]]
    two_jobs.tick()
    page = values(two_jobs.page())
    assert page['perfd_step{perfd_job="good"}'] == 2
    assert page[f'perfd_job_failing{{part="{part}",perfd_job="bad"}}'] == 1
    assert page["perfd_failed_ticks_total"] == 0
    assert "good" in {capture["job"] for capture in two_jobs.captures()}
    two_jobs._history.close()
    assert two_jobs.stored_summary("good")["steps"]["last"] == 2


def test_a_job_that_is_forgotten_leaves_its_failure(two_jobs, clock, broken_analysis):
    two_jobs.tick()
    clock.advance(1e9)
    two_jobs.tick()
    two_jobs.tick()
    assert two_jobs.jobs() == []
    assert series_of(two_jobs, "bad") == set()


def test_a_node_whose_series_cannot_be_made_leaves_those_of_others(clock, monkeypatch):
    broken = failing_for("n1", series_frames._node_keys, lambda _, node, *__: node.name)
    monkeypatch.setattr("perfd.aggregator.series.series_frames._node_keys", broken)
    with (
        aggregator(clock) as running,
        FakeAgent(running.grpc_address, agent_id="a", node="n1") as bad,
        FakeAgent(running.grpc_address, agent_id="b", node="n2") as good,
    ):
        for agent in (bad, good):
            agent.hello()
            agent.send(gpus(START_S, power_w=500.0))
        running.tick()
        running.tick()
        page = values(running.page())
    assert [name for name in page if name.startswith("perfd_gpu_power")] == [
        'perfd_gpu_power_watts{gpu="0",instance="n2",node="n2"}'
    ]
    assert page['perfd_failures_total{part="node"}'] >= 1


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("perfd.aggregator.alerts.alert_evaluation.AlertEvaluation.evaluate", "rules"),
        ("perfd.aggregator.captures.capture_service.CaptureService.tick", "capture"),
        ("perfd.aggregator.history.history_recorder.HistoryRecorder.expire", "history"),
    ],
)
def test_a_stage_that_fails_for_all_jobs_stops_no_other_stage(two_jobs, monkeypatch, place, part):
    monkeypatch.setattr(place, lambda *_: 1 / 0)
    two_jobs.tick()
    two_jobs.tick()
    page = values(two_jobs.page())
    assert page['perfd_step{perfd_job="good"}'] == 2
    assert page[f'perfd_failures_total{{part="{part}"}}'] >= 1


# Rounds


@pytest.fixture
def broken_rounds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series_frames.SeriesFrames, "make", lambda *_, **__: 1 / 0)
        yield patch


def test_the_counter_of_failed_rounds_moves_when_the_round_fails(two_jobs, broken_rounds):
    finished = values(two_jobs.page())["perfd_round_timestamp_seconds"]
    for failed in (1, 2):
        with pytest.raises(ZeroDivisionError):
            two_jobs.tick()
        page = values(two_jobs.page())
        assert page["perfd_failed_ticks_total"] == failed
        assert page["perfd_round_timestamp_seconds"] == finished == START_S


@pytest.mark.parametrize(("interval_s", "fresh_for_s"), [(1.0, 30.0), (6.0, 30.0), (10.0, 50.0)])
def test_a_page_that_is_not_of_now_is_not_served(clock, broken_rounds, interval_s, fresh_for_s):
    broken_rounds.undo()
    with aggregator(clock, http_listen="127.0.0.1:0", round_interval_s=interval_s) as running:
        clock.advance(fresh_for_s)
        assert ask(running, "/metrics")[0] == ask(running, "/api/v1/readyz")[0] == 200
        clock.advance(0.1)
        sentence = f"No analysis round has finished for {fresh_for_s:.0f} s; the log says why.\n"
        assert ask(running, "/metrics") == ask(running, "/api/v1/readyz") == (503, sentence)
        assert ask(running, "/api/v1/healthz")[0] == 200
        running.tick()
        assert ask(running, "/metrics")[0] == ask(running, "/api/v1/readyz")[0] == 200
        newest = values(running.page())["perfd_round_timestamp_seconds"]
        assert newest == pytest.approx(clock.unix_ns() / 1e9)


def test_an_aggregator_whose_rounds_fail_starts_and_takes_what_agents_send(clock, broken_rounds):
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        assert agent.send(step(1)) == 1


def test_an_error_is_logged_once_for_each_job_and_place(caplog):
    failures = Failures()
    with caplog.at_level(logging.ERROR):
        for job in ("a", "b", "a"):
            with failures.contained(Part.SERIES, job=job):
                raise KeyError("secret")
        with failures.contained(Part.SERIES, job="a"):
            raise ValueError("secret")
    assert [record.job for record in caplog.records] == ["a", "b", "a"]
    assert failures.counts() == {Part.SERIES: 4}
    assert failures.of_job("a").startswith("series failed: ValueError in test_bulkheads.py, line ")
    assert "secret" not in failures.of_job("a")
    with failures.contained(Part.SERIES, job="a"):
        pass
    assert failures.of_job("a") is None
    assert failures.jobs() == [("b", Part.SERIES)]


def test_the_summary_of_a_failed_job_can_be_read_back_and_reported():
    summary = failed_summary("llm", "ValueError in x.py, line 3.")
    (back,) = from_json(to_json([summary]))
    assert (back.bottleneck.kind, back.step_time_s.median) == (Kind.ANALYSIS_FAILED, None)
    assert "ValueError in x.py, line 3." in to_html(report_of_summary(back, "perfd"))


# Numbers that cannot be


def test_a_gpu_that_says_it_has_no_memory_is_one_of_unknown_memory(clock):
    odd = [
        GpuInfo(index=0, name="NVIDIA H200", memory_bytes=0),
        MemoryReport(job="evil", step=1, rank=0, reserved_bytes=1e9),
    ]
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1, job="good"), step(1, job="evil"), *odd)
        running.tick()
        page = values(running.page())
        (evil,) = running.summary("evil")
    assert page['perfd_step{perfd_job="good"}'] == page['perfd_step{perfd_job="evil"}'] == 1
    assert evil.memory.max_used_ratio == pytest.approx(1e9 / 150_754_820_096, rel=0.1)
    assert not any(name.startswith("perfd_failures_total") for name in page)


@pytest.fixture(scope="module")
def rig():
    """A way to run an aggregator of its own without its ports: what is costly to load is loaded once."""
    names, rules, peaks = MetricNames.installed(), alert_evaluation.load_rules(builtin_rules()), load_peaks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricNames, "installed", lambda: names)
        patch.setattr(alert_evaluation, "load_rules", lambda _: rules)
        patch.setattr(configured_analysis, "load_peaks", lambda _: peaks)
        yield run_rounds


def run_rounds(*batches, **config):
    """An aggregator after three rounds in 15 s; each batch is a node with its records."""
    clock = VirtualClock(START_NS + STEPS * 10**9)
    running = Aggregator(AggregatorConfig(http_listen=None, **config), clock, manual=True)
    intake = Ingest(running.state, clock, None, running._captures)
    for stream, (node, sent_unix_ns, found) in enumerate(batches, 1):
        hello = Hello(agent_id=node, node=node, perfd_version="", sent_unix_ns=START_NS, first_sequence=1)
        agent, _ = intake.hello(hello, stream)
        data = encode_message(
            Batch(sequence=agent.last_sequence + 1, sent_unix_ns=sent_unix_ns, records=found)
        )
        intake.batch(agent, decode_agent_message(data), lambda: None)
    for _ in range(3):
        clock.advance(5.0)
        running.tick()
    return running


def ranks_of(name, *ranks):
    blocks = [PhaseTime(by_rank=dict.fromkeys(ranks, 0.1)) for _ in range(STEPS)]
    return [StepPhases(job="evil", step=step, phases={name: one}) for step, one in enumerate(blocks, 1)]


def experts(count, *, top_k):
    return MoeShape(experts=count, top_k=top_k, expert_ffn_size=64, layer_pattern=())


def described(layout=None, **sizes):
    model = {"layers": 8, "hidden_size": 64, "attention_heads": 4, "sequence_length": 128, **sizes}
    return JobDescription(
        job="evil",
        framework="megatron",
        precision="bf16",
        model=ModelShape(ffn_size=0, kv_heads=0, head_size=0, **model),
        parallel=layout or ParallelLayout(),
        recompute=Recompute.FULL,
        recompute_layers=1,
        arguments={"recompute_method": "block"},
    )


def ended(exit_code):
    time_unix_ns = START_NS + 200 * 10**9
    values = {"exit_code": exit_code}
    return Event(kind=EventKind.JOB_ENDED, time_unix_ns=time_unix_ns, message="", job="evil", values=values)


@pytest.mark.parametrize(
    "odd",
    [
        ranks_of("forward-compute", 64),
        [ended(exit_code=math.nan)],
        [described()],
        [described(layers=0)],
        [described(hidden_size=0)],
        [described(attention_heads=0)],
        [described(ParallelLayout(micro_batch_size=1), moe=experts(0, top_k=2))],
        [described(ParallelLayout(micro_batch_size=1), moe=experts(8, top_k=0))],
        [described(ParallelLayout(pp=0, tp=0, dp=0, cp=0, ep=0, vp=0, global_batch_size=0))],
    ],
    ids=[
        "one timer",
        "exit code",
        "no weights",
        "no layers",
        "no width",
        "no heads",
        "no experts",
        "no choice",
        "no groups",
    ],
)
@pytest.mark.parametrize("convention", ["megatron", "megatron-full"])
def test_what_once_stopped_the_rounds_does_so_no_more(rig, odd, convention):
    node = [record for record in healthy("evil") if not isinstance(record, JobDescription)]
    running = rig(("e", START_NS, [*odd, *node, *odd]), analysis=AnalysisConfig(flops_convention=convention))
    assert running.summary("evil")[0].bottleneck.kind is not Kind.ANALYSIS_FAILED
    assert running.state.failures.counts() == {}


@functools.cache
def summary_of_good():
    running = run_rounds(("g", START_NS, healthy("good")))
    return to_json(running.summary("good"))


@pytest.mark.timeout(300)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    odd=st.lists(records("evil"), min_size=1, max_size=8),
    well=st.sampled_from([(), healthy("evil")]),
    sent_unix_ns=st.sampled_from([0, START_NS, 2**63 - 1, -(2**63)]),
)
def test_no_record_that_the_wire_takes_stops_the_rounds_or_changes_another_job(rig, odd, well, sent_unix_ns):
    running = rig(("g", START_NS, healthy("good")), ("e", START_NS, well), ("e", sent_unix_ns, odd))
    for document in (
        running.overview(),
        running.fleet(),
        running.servers(),
        running.agents(),
        running.alerts(),
    ):
        msgspec.json.encode(document)
    for name in running.jobs():
        running.series(name, 10)
        running.steps(name, 0, 100)
        for summary in from_json(to_json(running.summary(name))):
            to_html(report_of_summary(summary, "perfd"))
    page = values(running.page())
    assert {part: count for part, count in running.state.failures.counts().items() if count} == {}
    assert page["perfd_failed_ticks_total"] == 0
    assert to_json(running.summary("good")) == summary_of_good()


@settings(max_examples=examples(60))
@given(record=records("evil"))
def test_what_history_keeps_of_any_record_can_be_written(record):
    state = AggregatorState.empty(Limits())
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    data = encode_message(Batch(sequence=1, sent_unix_ns=0, records=[record]))
    for durable in state.fleet.apply(decode_agent_message(data).records, source()):
        for kind, written in rows(durable, START_S):
            database.execute(WRITES[kind], written)
    assert state.failures.counts() == {}
    database.close()
