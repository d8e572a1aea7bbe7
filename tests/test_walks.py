"""The walks of docs/architecture.md against a run: which modules really get the value."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from perfd_collectors import nccl, nvml, training_log

from perfd.agent.agent import Agent
from perfd.agent.collection import CollectorTask
from perfd.aggregator import Aggregator
from perfd.aggregator.web_api.report_routes import report_routes
from perfd.clock import VirtualClock
from perfd.collector import CollectorSpec, Settings
from perfd.config import (
    AgentCaptureConfig,
    AgentConfig,
    AggregatorConfig,
    CollectorConfig,
    RulesConfig,
    UplinkConfig,
)
from perfd.net import Request
from perfd.protobuf_encoding import varint
from tests.support.fake_nvml import FakeGpu, FakeNvml
from tests.support.nccl_segments import RankSegment
from tests.support.traced_value import TracedValue
from tests.test_docs import ROOT, walks

_START_NS = 1_795_225_496 * 10**9
_RULES = """
groups:
- name: power
  rules:
  - alert: {name}
    expr: {expression}
"""
_TYPES = {"model/*": "types", "report/report_model.py": "types"}
_OF_EVERY_RECORD = _TYPES | {
    "agent/collection/latest_samples.py": "the agent's own page",
    "agent/collection/batch_pace.py": "when the next batch is due",
    "agent/capture_setup.py": "what captures know of the job",
    "aggregator/notices/*": "how often agents are to send batches",
}
_BESIDE_THE_SAMPLE = _OF_EVERY_RECORD | {
    "protobuf_encoding.py": "where the numbers of such tables are, learned from the first one",
    "aggregator/state/gpu_history.py": "analysis and charts",
    "rules/rule_model.py": "the alert as the series ALERTS",
    "rules/rule_engine.py": "the alert",
    "aggregator/alerts/*": "the alert",
    "aggregator/captures/*": "the alert",
    "aggregator/history/*": "the alert",
    "aggregator/analysis_loop.py": "the alert",
}
_BESIDE_THE_LINE = _OF_EVERY_RECORD | {
    "training_log/formats/*": "parsers of other formats, which leave the line to the next one",
    "training_log/megatron/megatron_description.py": "the framework that prints such lines",
    "aggregator/jobs/operation_step_rows.py": "steps by operations, which the line counts",
    "aggregator/jobs/step_sources.py": "which source shows the steps",
    "aggregator/state/durable_records.py": "history",
    "aggregator/state/gpu_samples.py": "samples of GPUs in the same steps",
    "aggregator/analysis_loop.py": "the page, rules and exporters get the summary",
    "aggregator/job_summaries.py": "the headline, held for a while",
    "aggregator/job_changes.py": "whether the job's numbers are made again",
    "aggregator/series/*": "the page",
    "analysis/*": "other numbers of the same steps",
}


_BESIDE_THE_ALERT = _TYPES | {
    "aggregator/notices/*": "how often agents are to send batches",
    "rules/promql/*": "the number that the alert has, before there is an alert",
    "rules/rule_model.py": "the alert as the series ALERTS",
    "aggregator/history/*": "history",
    "aggregator/web_api/html_pages.py": "the page, once it is rendered",
}


_BESIDE_THE_OPERATION = _OF_EVERY_RECORD | {
    "aggregator/jobs/job_state.py": "steps by operations",
    "aggregator/jobs/operation_step_rows.py": "steps by operations",
    "aggregator/operations/steps_by_operations/*": "steps by operations",
    "aggregator/operations/communicator_members.py": "which communicators are in use",
    "aggregator/operations/kernel_time_shares.py": "shares of time in kernels",
    "aggregator/analysis_loop.py": "the page, rules and exporters get the summary",
    "aggregator/job_summaries.py": "the headline, held for a while",
    "aggregator/job_changes.py": "whether the job's numbers are made again",
    "aggregator/series/*": "the page",
    "aggregator/nodes/*": "what the node was blamed for",
    "nodes/*": "what the node was blamed for",
    "rules/series_store.py": "alerts",
    "analysis/collectives/broadcast_roots.py": "ranks that hand data to others",
    "analysis/collectives/kernel_time_by_dimension.py": "shares of time by parallel dimension",
    "analysis/collectives/communicator_totals.py": "shares of time by group",
    "analysis/collectives/peer_waits.py": "the matrix of who waits for whom",
    "analysis/collectives/pipeline_wait.py": "the pipeline bubble",
    "analysis/collectives/slow_links.py": "links",
    "analysis/counterfactual/fault_onset.py": "since when the rank is late",
    "analysis/counterfactual/late_together.py": "nodes that are late",
    "analysis/operations/bandwidth_model.py": "links",
    "analysis/data/run_configuration.py": "the job's configuration",
    "analysis/diagnosis/*_findings.py": "other findings",
    "analysis/communication/*": "exposed communication",
    "analysis/diagnosis/checklist/*": "the checklist of MFU",
    "analysis/diagnosis/last_by_chance.py": "whether the finding stands",
    "analysis/findings/*": "the finding",
    "analysis/hang/*": "hangs",
    "analysis/layout/*": "links and groups",
    "analysis/data/training_time.py": "other numbers of the job",
    "analysis/steps/*": "other numbers of the job",
    "analysis/stragglers/*": "ranks by timers and GPUs",
    "formatting.py": "the finding's sentences",
    "analysis/flops/mfu_tier.py": "the finding's advice",
}


def _run(
    spec: CollectorSpec,
    options: dict[str, object],
    folder: Path,
    value: TracedValue,
    *,
    alert: str = "Hot",
    expression: str = "perfd_gpu_power_watts > 400",
    seconds: int = 3,
    before_each: Callable[[int], object] = lambda second: None,
    then: Callable[[Aggregator], object] = lambda aggregator: None,
) -> Aggregator:
    """An agent with one collector and an aggregator with one rule, for a few seconds of their own clock."""
    clock = VirtualClock(_START_NS)
    rules = folder / "rules.yaml"
    rules.write_text(_RULES.format(name=alert, expression=expression))
    aggregator = Aggregator(
        AggregatorConfig(
            listen="127.0.0.1:0", http_listen=None, rules=RulesConfig(builtin=False, files=[str(rules)])
        ),
        clock,
        manual=True,
        captures=False,
    )
    settings = Settings(node="n0", job="llm", clock=clock)
    with value.followed():
        aggregator.start()
        agent = Agent(
            AgentConfig(
                listen=None,
                uplink=UplinkConfig(address=aggregator.grpc_address),
                capture=AgentCaptureConfig(enabled=False),
            ),
            node="n0",
            spool_directory=folder / "spool",
            tasks=[CollectorTask(spec, CollectorConfig(interval_s=1.0, options=options), settings)],
            clock=clock,
            manual=True,
        )
        try:
            agent.start()
            for second in range(seconds):
                before_each(second)
                clock.advance(1.0)
                sequence = agent.step()
                assert sequence is None or agent.wait_acknowledged(sequence, 60.0)
                aggregator.tick()
            then(aggregator)
        finally:
            agent.stop()
            aggregator.stop()
    return aggregator


def _check(name: str, traced: set[str], beside: dict[str, str], *, transport: bool = True) -> None:
    found = walks()
    walk = {*found[name][1], *(found["Transport"][1] if transport else ())}
    assert {file for file in walk if not any(f"/{module}".endswith(f"/{file}") for module in traced)} == set()
    extra = {module for module in traced if not any(f"/{module}".endswith(f"/{file}") for file in walk)}
    assert {module for module in extra if not any(fnmatch(module, pattern) for pattern in beside)} == set()


@pytest.mark.slow
def test_the_walk_of_an_nvml_sample_has_the_files_that_get_it(tmp_path: Path) -> None:
    gpu = FakeNvml([FakeGpu(power_mw=431_257)])
    spec = replace(nvml.SPEC, create=lambda options, settings: nvml.NvmlCollector(gpu, options, settings))
    value = TracedValue((431.257,))

    aggregator = _run(spec, {}, tmp_path, value)

    assert [alert["name"] for alert in aggregator.alerts()] == ["Hot"]
    _check("An NVML sample to an alert", value.modules, _BESIDE_THE_SAMPLE)


@pytest.mark.slow
def test_the_walk_of_a_log_line_has_the_files_that_get_it(tmp_path: Path) -> None:
    recorded = (ROOT / "perfd/data/recordings/dp4/node0/stdout.log").read_text().splitlines(keepends=True)
    lines = [place for place, line in enumerate(recorded) if "elapsed time per iteration" in line]
    marked = re.sub(r"(per iteration \(ms\): )[\d.]+", r"\g<1>777.3125", recorded[lines[-3]])
    log = tmp_path / "train.log"
    log.write_text("".join([*recorded[: lines[-3]], marked, *recorded[lines[-3] + 1 : lines[-1] + 1]]))
    value = TracedValue((0.7773125, 777.3125), ("777.3125",))

    aggregator = _run(training_log.SPEC, {"paths": [str(log)]}, tmp_path, value)

    assert [summary.name for summary in aggregator.summary()] == ["llm"]
    _check("A log line to MFU", value.modules, _BESIDE_THE_LINE)


@pytest.mark.slow
def test_the_walk_of_an_alert_has_the_files_that_get_it(tmp_path: Path) -> None:
    value = TracedValue((40.7773125,), ("Alert Slow fires",))
    pages = []

    def read_report(aggregator: Aggregator) -> None:
        report = report_routes(aggregator)["/reports/jobs/"]
        pages.append(report(Request(method="GET", path="/reports/jobs/llm", rest="llm", query={})).body)

    _run(
        training_log.SPEC,
        {"paths": [str(ROOT / "perfd/data/recordings/dp4/node0/stdout.log")]},
        tmp_path,
        value,
        alert="Slow",
        expression="perfd_step * 0 + 40.7773125",
        then=read_report,
    )

    assert b"Alert Slow fires" in pages[0]
    _check("An alert to a report", value.modules, _BESIDE_THE_ALERT, transport=False)


_LATE_NS, _USUAL_NS = 5_000_000, 20_773_125
_ELEMENTS = (1_234_567, 2_345_671, 3_456_712, 4_567_123)
_STEPS_PER_S = 8


def _write_second(segments: list[RankSegment], start_ns: int) -> None:
    """Steps of a second with four all-reduces each; of the first one, all wait for rank 2."""
    for step in range(_STEPS_PER_S):
        for place, elements in enumerate(_ELEMENTS):
            end_ns = start_ns + (step * len(_ELEMENTS) + place + 1) * 10**9 // (_STEPS_PER_S * len(_ELEMENTS))
            for rank, segment in enumerate(segments):
                waits = place == 0 and rank != 2
                segment.all_reduce(elements, end_ns - 1_000_000, _USUAL_NS if waits else _LATE_NS)


@pytest.mark.slow
def test_the_walk_of_an_nccl_record_has_the_files_that_get_it(tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    segments = [RankSegment(shared / f"perfd-nccl-{rank}-1", rank, 4, _START_NS) for rank in range(4)]
    waited_s = (_USUAL_NS - _LATE_NS) / 1e9
    # By all-reduces: how long one takes, and is waited for; by steps: what is lost by the late rank.
    value = TracedValue(
        (_USUAL_NS / 1e9, waited_s, waited_s * _STEPS_PER_S),
        integers=(_USUAL_NS, _ELEMENTS[0] * 4),
        encoded=(struct.pack("<Q", _ELEMENTS[0]), varint(_USUAL_NS)),
    )

    def write(second: int) -> None:
        value.paused = second < 4
        _write_second(segments, 10**9 * (1 + second))

    options: dict[str, object] = {"directory": str(shared), "flight_recorder_prefix": None}
    try:
        aggregator = _run(nccl.SPEC, options, tmp_path, value, seconds=6, before_each=write)
    finally:
        for segment in segments:
            segment.close()

    (summary,) = aggregator.summary()
    assert [culprit.id for culprit in summary.findings[0].culprits] == [2]
    _check("An NCCL record to a culprit", value.modules, _BESIDE_THE_OPERATION)
