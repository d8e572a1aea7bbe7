"""The page for Prometheus and the names on it."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from aggregator.support import START_S, aggregator, gpus, place, step, values
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from perfd.agent.collection.collector_task import TaskState
from perfd.agent.self_metrics import agent_values, collector_values
from perfd.agent.spool.spool import SpoolStats
from perfd.agent.uplink.uplink import UplinkState
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.series.page_renderer import PageRenderer
from perfd.collector import ColumnKind
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.metrics.catalog import (
    AGENT_METRICS,
    AGENT_PAGE_METRICS,
    AGGREGATOR_METRICS,
    GATEWAY_METRICS,
    JOB_METRICS,
    METRICS,
    PROCESS_METRICS,
    families,
    raw_metric,
)
from perfd.metrics.exposition import MetricSource, process_registry
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import (
    JOB_LABEL,
    CollectorHealth,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    LogProgress,
    MemoryReport,
    ParallelLayout,
    PhaseTime,
    Scope,
    StepPhases,
)
from perfd.rules.files.rules_loader import builtin_rules
from tests.support.fake_agent import FakeAgent

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text;version=1.0.0"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_UNITS = ("seconds", "bytes", "ratio", "watts", "joules", "hertz", "celsius")


def frame(series):
    keys = [SeriesKey.of(name, labels) for name, labels, _ in series]
    return SeriesFrame(0.0, keys, np.array([value for *_, value in series], float))


def renderer():
    return PageRenderer(MetricNames([]).describe)


def slowly(series, accept):
    """The same page by prometheus_client."""
    ordered = sorted(series, key=lambda one: one[0])
    present = [(name, labels, value if value == value else None) for name, labels, value in ordered]
    encode, _ = choose_encoder(accept)
    return encode(MetricSource(lambda: families(present, MetricNames([]).describe)))


label_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
any_series = st.lists(
    st.tuples(
        st.sampled_from(["perfd_mfu_ratio", "perfd_step", "perfd_log_lines_total", "made_up"]),
        st.dictionaries(st.sampled_from(["job", "node", "gpu"]), label_values, max_size=3),
        st.floats(),
    ),
    max_size=20,
)


def parsed(page):
    lines = page.decode().split("\n")
    return [
        # Adding 0.0 makes one of the two zeros.
        line if line.startswith("#") else (line.rpartition(" ")[0], float(line.rpartition(" ")[2] or 0) + 0.0)
        for line in lines
    ]


@given(any_series)
def test_the_fast_page_is_the_page_of_prometheus_client(series):
    np.testing.assert_equal(parsed(renderer().render(frame(series))), parsed(slowly(series, TEXT)))


@given(any_series)
def test_the_fast_page_of_openmetrics_lacks_only_its_end(series):
    page = renderer().render(frame(series), openmetrics=True)
    np.testing.assert_equal(parsed(page + b"# EOF\n"), parsed(slowly(series, OPENMETRICS)))


def test_a_series_without_a_value_is_absent_and_so_is_its_family():
    page = (
        renderer()
        .render(frame([("perfd_step", {"perfd_job": "a"}, float("nan")), ("perfd_jobs", {}, 1.0)]))
        .decode()
    )
    assert "perfd_step" not in page
    assert "perfd_jobs 1" in page


def test_infinities_are_written_as_prometheus_writes_them():
    page = renderer().render(
        frame(
            [
                ("perfd_step", {"perfd_job": "a"}, float("inf")),
                ("perfd_step", {"perfd_job": "b"}, float("-inf")),
            ]
        )
    )
    assert page.decode().splitlines()[2:] == [
        'perfd_step{perfd_job="a"} +Inf',
        'perfd_step{perfd_job="b"} -Inf',
    ]


def test_other_values_of_the_same_series_reuse_what_was_prepared():
    made, first = renderer(), frame([("perfd_step", {"perfd_job": "a"}, 1.0)])
    made.render(first)
    again = SeriesFrame(1.0, first.keys, np.array([2.0]))
    assert made.render(again).decode().splitlines()[-1] == 'perfd_step{perfd_job="a"} 2.0'
    other = frame([("perfd_loss", {"perfd_job": "a"}, 3.0)])
    assert "perfd_step" not in made.render(other).decode()


def test_an_empty_frame_is_an_empty_page():
    assert renderer().render(frame([])) == b""


def full_page(accept=""):
    """The page of an aggregator that was told of everything."""
    with aggregator() as running, FakeAgent(running.grpc_address, node="n0") as agent:
        agent.hello()
        time_ns = round(START_S * 1e9)
        agent.send(
            JobDescription(
                job="llm",
                framework="megatron-lm",
                parallel=ParallelLayout(world_size=2, tp=1, pp=2, dp=1),
                train_steps=100,
            ),
            GpuInfo(index=0, name="NVIDIA H200", memory_bytes=150_000_000_000),
            place(0, 0),
            *(step(number, time_s=START_S + number, loss=2.0, tokens_per_s=5.0) for number in range(1, 120)),
            *(StepPhases(job="llm", step=n, phases={"forward": PhaseTime(min_s=0.1)}) for n in range(1, 120)),
            gpus(START_S, sm_active_ratio=0.5, energy_j=3.0, of_someone_else=1.0),
            gpus(START_S, scope=Scope.NIC, rx_bytes=1.0),
            LogProgress(
                job="llm", stream="s", lines=9, read_bytes=9, unrecognized_lines=1, last_line_unix_ns=time_ns
            ),
            MemoryReport(job="llm", step=1, rank=0, max_reserved_bytes=75e9),
            Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=time_ns, message="", gpu=0, code=79),
            CollectorHealth(collector="nvml", time_unix_ns=time_ns, duration_s=0.1, success=True),
            sent_unix_ns=time_ns,
        )
        running.tick()
        return running.metrics({"accept": accept}).body, {
            key for frame in running.frames().values() for key in frame.keys
        }


def test_every_series_is_in_the_catalog_with_its_labels():
    _, keys = full_page()
    names = MetricNames.installed()
    raw = {
        raw_metric(column).name
        for name in collector_entry_points()
        for column in load_collector(name).columns
    }
    for key in keys:
        if key.name in METRICS:
            assert {label for label, _ in key.labels} <= set(METRICS[key.name].labels), key
        else:
            assert key.name in raw or key.name in {"perfd_gpu_of_someone_else", "perfd_nic_rx_bytes"}, key
        assert names.describe(key.name) is not None


def test_what_was_reported_is_on_the_page():
    page, _ = full_page()
    found = values(page)
    expected = {
        'perfd_step{perfd_job="llm"}': 119.0,
        'perfd_step_time_seconds{perfd_job="llm"}': 1.0,
        'perfd_step_time_regression_ratio{perfd_job="llm"}': 0.0,
        'perfd_train_steps{perfd_job="llm"}': 100.0,
        'perfd_step_phase_seconds{perfd_job="llm",phase="forward",stat="min"}': 0.1,
        'perfd_gpu_sm_active_ratio{gpu="0",instance="n0",node="n0",perfd_job="llm",rank="0"}': 0.5,
        'perfd_gpu_energy_joules_total{gpu="0",instance="n0",node="n0",perfd_job="llm",rank="0"}': 3.0,
        'perfd_hardware_errors_total{code="79",gpu="0",instance="n0",node="n0",perfd_job="llm"}': 1.0,
        'perfd_log_unrecognized_lines_total{perfd_job="llm"}': 1.0,
        'perfd_memory_used_ratio{perfd_job="llm"}': 0.5,
        'perfd_collector_success{collector="nvml",node="n0"}': 1.0,
        'perfd_agent_up{node="n0"}': 1.0,
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)
    assert not any(name.startswith("perfd_mfu_ratio") for name in found)


@pytest.mark.parametrize(
    "metric", [*METRICS.values(), *AGENT_PAGE_METRICS, *GATEWAY_METRICS], ids=lambda metric: metric.name
)
def test_names_follow_the_conventions(metric):
    assert _NAME.fullmatch(metric.name)
    assert (metric.kind is ColumnKind.COUNTER) == metric.name.endswith("_total")
    for unit in _UNITS:
        base = metric.name.removesuffix("_total")
        assert unit not in base.split("_")[:-1] or base.split("_")[-1] in {*_UNITS, "second", "gpu"}
    assert metric.help.endswith(".")
    assert metric.absent.endswith(".")
    assert all(_NAME.fullmatch(label) for label in metric.labels)


def test_no_metric_is_in_the_catalog_twice():
    for metrics in (
        [*JOB_METRICS, *AGENT_METRICS, *AGGREGATOR_METRICS, *PROCESS_METRICS],
        [*AGENT_PAGE_METRICS, *PROCESS_METRICS],
        [*GATEWAY_METRICS, *PROCESS_METRICS],
    ):
        names = [metric.name for metric in metrics]
        assert len(names) == len(set(names))


def test_the_agents_own_metrics_are_all_in_the_catalog():
    spool = SpoolStats(payload_bytes=0, batches=0, writable=True, dropped_batches=0, dropped_records=0)
    values = [
        *agent_values(spool=spool, uplink=UplinkState(), last_sequence=0, dropped_records=0),
        *collector_values([TaskState(collector="nvml")], 0.0),
    ]
    assert {name for name, _, _ in values} == {metric.name for metric in AGENT_PAGE_METRICS}


def test_what_every_process_exports_is_in_the_catalog_under_the_names_of_prometheus_client():
    registry = process_registry()
    exported = {
        (sample.name, family.type, tuple(sorted(sample.labels)))
        for family in registry.collect()
        for sample in family.samples
    }
    known = {(metric.name, metric.kind.value, tuple(sorted(metric.labels))) for metric in PROCESS_METRICS}
    assert exported == known


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS])
def test_no_family_of_the_whole_page_comes_twice(accept):
    page, _ = full_page(accept)
    parse = openmetrics_families if accept == OPENMETRICS else text_families
    names = [family.name for family in parse(page.decode())]
    assert len(names) == len(set(names))
    assert {"perfd_step", "perfd_batches", "perfd_agent_up", "process_cpu_seconds", "python_info"} <= set(
        names
    )


def test_metrics_md_is_up_to_date():
    made = runpy.run_path(str(Path(__file__).parents[2] / "deploy/reference/make_metrics_reference.py"))
    assert made["main"](["--check"]) == 0


def test_shipped_rules_read_only_series_that_exist():
    raw = {
        raw_metric(column).name
        for name in collector_entry_points()
        for column in load_collector(name).columns
    }
    recorded, read = set(), set()
    for path in builtin_rules():
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                recorded |= {rule["record"]} if "record" in rule else set()
                read |= set(re.findall(r"\bperfd_[a-z0-9_]+", rule["expr"]))
    assert read
    assert read - recorded - {JOB_LABEL} <= set(METRICS) | raw


@pytest.mark.system
def test_promtool_finds_nothing_to_say_about_the_page():
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: apt-get install prometheus"
    page, _ = full_page()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False, timeout=30
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
