from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from agent.support import gpu_table, steps, task
from prometheus_client.parser import text_string_to_metric_families

from perfd.agent.agent import Agent
from perfd.agent.collection import batch_pace
from perfd.agent.collection.collector_task import CollectorTask
from perfd.clock import SystemClock, VirtualClock
from perfd.collector import Column, OnUnavailable
from perfd.config import AgentCaptureConfig, AgentConfig, SpoolConfig, TlsConfig, UplinkConfig, load
from perfd.errors import ConfigError, PerfdError, Unavailable
from perfd.model import (
    BatchInterval,
    CaptureRequest,
    CaptureState,
    CaptureTool,
    CollectorHealth,
    NewFinding,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
)
from tests.support.fake_aggregator import FakeAggregator

WAIT_S = 20.0
DEFAULTS = Path(__file__).parents[2] / "deploy" / "agent.yaml"
NewAgent = Callable[..., Agent]


@pytest.fixture
def aggregator() -> Iterator[FakeAggregator]:
    with FakeAggregator() as fake:
        yield fake


@pytest.fixture
def new_agent(tmp_path: Path) -> Iterator[NewAgent]:
    agents: list[Agent] = []

    def create(address: str, tasks: Sequence[CollectorTask], **options: Any) -> Agent:
        config = {"listen": None, "capture": AgentCaptureConfig(enabled=False)} | options.pop("config", {})
        uplink = {"batch_interval_s": 0.05, "backoff_initial_s": 0.05} | options.pop("uplink", {})
        agents.append(
            Agent(
                AgentConfig(uplink=UplinkConfig(address=address, **uplink), **config),
                node="n1",
                spool_directory=tmp_path / "spool",
                tasks=tasks,
                **options,
            )
        )
        return agents[-1]

    yield create
    for agent in agents:
        agent.stop()


def received(aggregator: FakeAggregator, kind: type[Record]) -> list[Any]:
    return [record for batch in aggregator.batches for record in batch.records if isinstance(record, kind)]


def test_what_collectors_see_arrives_at_the_aggregator(
    aggregator: FakeAggregator, new_agent: NewAgent
) -> None:
    clock = SystemClock()
    agent = new_agent(aggregator.address, [task(lambda: [gpu_table(300.0)], clock=clock, interval_s=0.1)])
    agent.start()
    assert aggregator.wait_for(lambda: len(received(aggregator, SampleTable)) >= 3)
    assert received(aggregator, CollectorHealth)[0].success
    agent.stop()
    assert aggregator.sequences() == list(range(1, len(aggregator.batches) + 1))


def test_a_stop_sends_what_was_collected_last(aggregator: FakeAggregator, new_agent: NewAgent) -> None:
    delivered: list[Record] = []
    once = iter([steps(1)])
    one = task(lambda: next(once, []), clock=SystemClock())
    agent = new_agent(aggregator.address, [one], taps=[delivered.extend], uplink={"batch_interval_s": 3600.0})
    agent.start()
    assert aggregator.wait_for(lambda: bool(aggregator.hellos))
    agent.stop()
    assert received(aggregator, TrainingStep) == steps(1)
    assert [record for record in delivered if isinstance(record, TrainingStep)] == steps(1)


def test_a_quiet_node_sends_at_once_when_its_job_has_a_new_finding(
    aggregator: FakeAggregator, new_agent: NewAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_pace, "QUIET_AFTER_S", 0.2)
    samples = task(lambda: [gpu_table(250.0)], clock=SystemClock(), interval_s=0.1)
    agent = new_agent(aggregator.address, [samples], uplink={"quiet_batch_interval_s": 3600.0})
    agent.start()
    assert aggregator.wait_for(lambda: bool(aggregator.batches))
    quiet = -1
    while (now := len(aggregator.batches)) > quiet:
        quiet = now
        time.sleep(1.0)

    def sends_again() -> bool:
        aggregator.send(NewFinding(job="j1"))
        return len(aggregator.batches) > quiet

    deadline_s = time.monotonic() + WAIT_S
    while not sends_again() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert len(aggregator.batches) > quiet


def test_a_quiet_node_sends_as_seldom_as_it_is_asked_until_the_connection_ends(
    aggregator: FakeAggregator, new_agent: NewAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_pace, "QUIET_AFTER_S", 0.2)
    samples = task(lambda: [gpu_table(250.0)], clock=SystemClock(), interval_s=0.1)
    agent = new_agent(aggregator.address, [samples])
    agent.start()
    assert aggregator.wait_for(lambda: len(aggregator.batches) >= 20)
    aggregator.send(BatchInterval(quiet_s=5.0))
    sent = -1
    while (now := len(aggregator.batches)) > sent:
        sent = now
        time.sleep(1.0)
    aggregator.drop_streams()
    # At 5 s they would take longer than the test waits.
    assert aggregator.wait_for(lambda: len(aggregator.batches) >= sent + 20)


def test_an_agent_can_be_driven_step_by_step_on_a_virtual_clock(
    aggregator: FakeAggregator, new_agent: NewAgent
) -> None:
    clock = VirtualClock(start_unix_ns=1_000_000_000)
    numbers = iter(range(1, 100))
    one = task(lambda: steps(1, first=next(numbers)), clock=clock)
    agent = new_agent(aggregator.address, [one], clock=clock, manual=True)
    agent.start()
    for expected in range(1, 6):
        sequence = agent.step()
        assert sequence == expected
        assert agent.wait_acknowledged(expected, WAIT_S)
        clock.advance(1.0)
    assert received(aggregator, TrainingStep) == steps(5)
    assert [batch.sent_unix_ns for batch in aggregator.batches] == [n * 1_000_000_000 for n in range(1, 6)]


def test_a_step_without_news_makes_no_batch(aggregator: FakeAggregator, new_agent: NewAgent) -> None:
    clock = VirtualClock()
    agent = new_agent(aggregator.address, [task(list, clock=clock)], clock=clock, manual=True)
    agent.start()
    assert agent.step() == 1  # The health of the first run.
    clock.advance(1.0)
    assert agent.step() is None


def metrics(agent: Agent) -> dict[tuple[str, str], float]:
    """Samples of the agent by name and by their collector or GPU."""
    text = agent.metrics().decode()
    return {
        (sample.name, sample.labels.get("collector") or sample.labels.get("gpu", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_show_how_collectors_and_stream_fare(aggregator: FakeAggregator, new_agent: NewAgent) -> None:
    clock = VirtualClock(start_unix_ns=5_000_000_000)

    def slow() -> list[Record]:
        clock.advance(0.5)
        return [gpu_table(250.0, unix_ns=clock.unix_ns())]

    def broken() -> list[Record]:
        raise Unavailable("Gone.")

    tasks = [task(slow, name="slow", clock=clock), task(broken, name="broken", clock=clock)]
    agent = new_agent(aggregator.address, tasks, clock=clock, manual=True)
    agent.start()
    sequence = agent.step()
    assert sequence is not None
    assert agent.wait_acknowledged(sequence, WAIT_S)
    found = metrics(agent)
    assert found["perfd_collector_duration_seconds", "slow"] == 0.5
    assert found["perfd_collector_success", "slow"] == 1
    assert found["perfd_collector_success", "broken"] == 0
    assert found["perfd_collector_last_success_timestamp_seconds", "slow"] == 5.5
    assert ("perfd_collector_last_success_timestamp_seconds", "broken") not in found
    assert found["perfd_collector_missed_ticks_total", "slow"] == 0
    assert found["perfd_agent_uplink_connected", ""] == 1
    assert found["perfd_agent_uplink_reconnects_total", ""] == 0
    assert found["perfd_agent_batches_sent_total", ""] == 1
    assert found["perfd_agent_sent_sequence", ""] == 1
    assert found["perfd_agent_acknowledged_sequence", ""] == 1
    assert found["perfd_agent_spool_batches", ""] == 0
    assert found["perfd_agent_spool_bytes", ""] == 0
    assert found["perfd_agent_dropped_records_total", ""] == 0
    assert found["perfd_gpu_power_watts", "0"] == 250.0
    assert found["process_resident_memory_bytes", ""] > 1 << 20


def test_metrics_show_what_waits_and_what_was_lost(new_agent: NewAgent) -> None:
    with FakeAggregator() as gone:
        address = gone.address
    clock = VirtualClock()
    one = task(lambda: steps(1), clock=clock)
    agent = new_agent(address, [one], clock=clock, manual=True, config={"spool": SpoolConfig(max_bytes=200)})
    agent.start()
    for _ in range(100):
        agent.step()
        clock.advance(1.0)
    found = metrics(agent)
    assert found["perfd_agent_uplink_connected", ""] == 0
    assert found["perfd_agent_spool_batches", ""] > 1
    assert 0 < found["perfd_agent_spool_bytes", ""] <= 200
    waiting, lost = found["perfd_agent_spool_batches", ""], found["perfd_agent_dropped_batches_total", ""]
    assert waiting + lost == found["perfd_agent_sequence", ""] == 100
    assert found["perfd_agent_dropped_records_total", ""] >= lost


def test_metrics_are_served_over_http(aggregator: FakeAggregator, new_agent: NewAgent) -> None:
    agent = new_agent(aggregator.address, [], config={"listen": "127.0.0.1:0"}, manual=True)
    agent.start()
    with urllib.request.urlopen(f"http://{agent.http_address}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"perfd_agent_build_info" in response.read()


def test_the_agent_says_that_it_is_healthy_without_an_aggregator(new_agent: NewAgent) -> None:
    agent = new_agent("127.0.0.1:1", [], config={"listen": "127.0.0.1:0"})
    agent.start()
    with urllib.request.urlopen(f"http://{agent.http_address}/healthz") as response:
        assert (response.status, response.read()) == (200, b"ok\n")


def test_an_agent_whose_source_must_be_there_does_not_start(
    aggregator: FakeAggregator, new_agent: NewAgent
) -> None:
    def create(_options: object, _settings: object) -> object:
        raise Unavailable("There is no such device; plug one in.")

    clock = SystemClock()
    one = task(list, create=create, on_unavailable=OnUnavailable.ERROR, clock=clock)
    with pytest.raises(Unavailable, match="plug one in"):
        new_agent(aggregator.address, [one]).start()
    # The spool is free again: nothing was left running.
    new_agent(aggregator.address, []).start()


def test_plaintext_to_another_machine_frees_the_spool_again(new_agent: NewAgent) -> None:
    with pytest.raises(ConfigError, match="allow_plaintext"):
        new_agent("10.0.0.1:9461", [])
    new_agent("127.0.0.1:9461", [])


def test_captures_are_refused_where_they_are_switched_off(
    aggregator: FakeAggregator, new_agent: NewAgent
) -> None:
    agent = new_agent(aggregator.address, [task(lambda: steps(1), clock=SystemClock())])
    agent.start()
    assert aggregator.wait_for(lambda: bool(aggregator.batches))
    aggregator.send(CaptureRequest(capture_id="c1", job="j1", tool=CaptureTool.NSYS, max_duration_s=1.0))
    assert aggregator.wait_for(lambda: bool(aggregator.statuses))
    assert aggregator.statuses[0].state is CaptureState.REFUSED
    assert "capture.enabled" in aggregator.statuses[0].reason


def test_captures_reach_the_executor_where_they_are_on(
    aggregator: FakeAggregator, new_agent: NewAgent
) -> None:
    agent = new_agent(
        aggregator.address,
        [task(lambda: steps(1), clock=SystemClock())],
        config={"capture": AgentCaptureConfig(nsys_path="/nowhere/nsys")},
    )
    agent.start()
    assert aggregator.wait_for(lambda: bool(aggregator.batches))
    aggregator.send(CaptureRequest(capture_id="c1", job="j1", tool=CaptureTool.NSYS, max_duration_s=1.0))
    assert aggregator.wait_for(lambda: bool(aggregator.statuses))
    assert aggregator.statuses[0].state is CaptureState.REFUSED
    assert CaptureTool.NSYS not in aggregator.hellos[0].capture_tools


def test_stopping_twice_or_before_the_start_is_legal(new_agent: NewAgent) -> None:
    agent = new_agent("127.0.0.1:9461", [])
    agent.stop()
    agent.stop()


def test_the_shipped_configuration_is_the_defaults() -> None:
    assert load(DEFAULTS, AgentConfig) == AgentConfig()


def test_the_shipped_configuration_names_every_key() -> None:
    def keys(kind: type[msgspec.Struct]) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(kind)}

    written = yaml.safe_load(DEFAULTS.read_text())
    assert set(written) == keys(AgentConfig)
    assert set(written["uplink"]) == keys(UplinkConfig)
    assert set(written["spool"]) == keys(SpoolConfig)
    assert set(written["capture"]) == keys(AgentCaptureConfig)
    for key in keys(TlsConfig):
        assert f"{key}: /etc" in DEFAULTS.read_text()


def test_a_column_that_a_collector_declares_is_explained_in_metrics(
    aggregator: FakeAggregator, new_agent: NewAgent
) -> None:
    clock = VirtualClock()
    one = task(lambda: [gpu_table(1.0)], clock=clock)
    one.columns = [
        Column(scope=Scope.GPU, name="power_w", help="Power of the board.", source="nvml", absent="Never.")
    ]
    agent = new_agent(aggregator.address, [one], clock=clock, manual=True)
    agent.start()
    agent.step()
    assert b"# HELP perfd_gpu_power_watts Power of the board." in agent.metrics()


def test_a_port_in_use_is_a_sentence_and_leaves_nothing_behind(
    aggregator: FakeAggregator, tmp_path: Path
) -> None:
    def agent(directory: Path, listen: str) -> Agent:
        config = AgentConfig(listen=listen, uplink=UplinkConfig(address=aggregator.address))
        return Agent(config, node="n1", spool_directory=directory, tasks=[], manual=True)

    first = agent(tmp_path / "a", "127.0.0.1:0")
    first.start()
    assert first.http_address is not None
    with pytest.raises(PerfdError, match=r"Cannot listen on .*Choose another address"):
        agent(tmp_path / "b", first.http_address).start()
    first.stop()
    agent(tmp_path / "b", "127.0.0.1:0").stop()
