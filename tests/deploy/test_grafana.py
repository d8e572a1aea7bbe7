"""The dashboards: their files are what the code makes, and their queries find what perfd exports."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from aggregator.support import START_S, aggregator, place, step

from perfd.aggregator.aggregator import Aggregator
from perfd.capture.capture_routes import StartBody
from perfd.clock import VirtualClock
from perfd.collector import ColumnKind
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.metrics.catalog import AGENT_METRICS, AGGREGATOR_METRICS, GATEWAY_METRICS, JOB_METRICS, raw_metric
from perfd.model import (
    CaptureState,
    CaptureStatus,
    CaptureTool,
    Event,
    EventKind,
    GpuAllocation,
    GpuAllocations,
    GpuInfo,
    JobDescription,
    ParallelLayout,
    PhaseTime,
    Record,
    SampleTable,
    StepPhases,
)
from perfd.recording import bundled
from perfd.rules.unit_tests.test_files import read_tests
from perfd.rules.unit_tests.test_runner import run_tests
from perfd.session.replay_session import ReplayOptions, replay
from tests.support.fake_agent import FakeAgent
from tests.support.prometheus import PrometheusServer, prometheus_server

HERE = Path(__file__).parent
GRAFANA = HERE.parents[1] / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
RECORDINGS = ("pp4_few", "dp4_slow2", "dp2_nccl")
TICKS = 40
"""Rounds of the made nodes, five seconds apart."""

need_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus") and not os.environ.get("CI"),
    reason="prometheus is not installed (Debian package `prometheus`)",
)
need_npm = pytest.mark.skipif(
    not shutil.which("npm") and not os.environ.get("CI"), reason="npm is not installed (Debian package `npm`)"
)


@dataclass(frozen=True)
class Asked:
    """A query of a dashboard."""

    dashboard: str
    panel: str
    expr: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expr}"


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def asked(path: Path) -> list[Asked]:
    dashboard = load(path)
    of_panels = [
        Asked(path.stem, panel["title"], target["expr"])
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]
    marks = dashboard.get("annotations", {}).get("list", ())
    return of_panels + [Asked(path.stem, f"mark {mark['name']}", mark["expr"]) for mark in marks]


ASKED = [one for path in FILES for one in asked(path)]


@cache
def exported() -> dict[str, set[str]]:
    """Labels of every metric on the aggregator's page, by its name, as docs/metrics.md has them."""
    columns = [column for name in collector_entry_points() for column in load_collector(name).columns]
    metrics = (
        *JOB_METRICS,
        *AGENT_METRICS,
        *AGGREGATOR_METRICS,
        *GATEWAY_METRICS,
        *map(raw_metric, columns),
    )
    return {metric.name: set(metric.labels) for metric in metrics}


def filled_in(expr: str, **values: str) -> str:
    """The expression as Grafana asks it."""
    expr = expr.replace("$__rate_interval", "1m").replace("${perfd}", "http://127.0.0.1:9460")
    values = {"rank": ".*", "cluster": ".*", "namespace": ".*", "pod": ".*", "exporter": ".*", **values}
    return re.sub(r"\$\{?(\w+)(?::\w+)?\}?", lambda found: values[found[1]], expr)


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfd_dashboards", "--check"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_files_are_what_the_code_makes() -> None:
    found = check(GRAFANA)
    assert found.returncode == 0, found.stderr


def test_a_file_that_was_edited_by_hand_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "grafana"
    shutil.copytree(GRAFANA, copy)
    edited = copy / "dashboards" / "job.json"
    edited.write_text(edited.read_text().replace("Step time", "Time"))
    (copy / "dashboards" / "old.json").write_text("{}")
    found = check(copy)
    assert found.returncode == 1
    assert "job.json is not what the code makes" in found.stderr
    assert "old.json is not what the code makes" in found.stderr
    assert "fleet.json" not in found.stderr


@pytest.mark.parametrize("query", ASKED, ids=lambda query: f"{query.dashboard}-{query.panel}")
def test_a_query_is_valid_and_names_only_metrics_of_the_catalog_and_their_labels(query: Asked) -> None:
    expr = filled_in(query.expr, job="j", node="n", server="s")
    promql_parser.parse(expr)
    catalog = exported()
    selectors = re.findall(r"(?<!:)\b((?!perfd_(?:job|partition)\b)perfd_\w+)(?:\{([^}]*)\})?", expr)
    assert selectors
    for name, matchers in selectors:
        assert name in catalog
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)) <= catalog[name]


FLEET_RULES = HERE.parents[1] / "deploy" / "prometheus" / "fleet.yaml"
RECORDED = {
    "job:perfd_mfu_ratio:avg_1h": {"big": 0.5, "small": 0.1, "over": 0.9},
    "job:perfd_gpu_sm_active_ratio:avg": {"big": 0.7, "small": 0.01},
    "job:perfd_gpu_power_watts:sum": {"big": 1500.0, "small": 100.0, "over": 100.0},
    "job:perfd_tokens_per_joule:ratio": {"big": 2.0},
}
"""What panels of the fleet show of the series in prometheus/fleet.yaml, by recording rule and job."""


def test_the_fleet_uses_the_recording_rules_of_jobs() -> None:
    rules = [rule for group in yaml.safe_load(FLEET_RULES.read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    used = [found for one in ASKED for found in re.findall(r"(\w+:perfd_\w+:\w+)\{([^}]*)\}", one.expr)]
    assert {name for name, _ in used} == set(RECORDED)
    for name, matchers in used:
        assert "by (cluster, namespace, perfd_job" in recorded[name]
        assert re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers) == ["cluster", "namespace", "perfd_job"]


@pytest.mark.system
@need_prometheus
@pytest.mark.parametrize("rules", [[str(FLEET_RULES)], []], ids=["recorded", "not recorded"])
def test_a_panel_shows_the_same_with_and_without_recording_rules(tmp_path: Path, rules: list[str]) -> None:
    document = yaml.safe_load((Path(__file__).parent / "prometheus" / "fleet.yaml").read_text())
    group = document["tests"][0]
    group["promql_expr_test"] = [
        {
            "expr": f"sum by (perfd_job) ({filled_in(one.expr, job='.*')})",
            "eval_time": "2m",
            "exp_samples": [
                {"labels": f'{{perfd_job="{job}"}}', "value": value} for job, value in RECORDED[name].items()
            ],
        }
        for name in RECORDED
        for one in ASKED
        if name in one.expr
    ]
    assert len(group["promql_expr_test"]) == len(RECORDED)
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({**document, "rule_files": rules, "tests": [group]}))
    found = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_variable_is_a_label_of_a_metric_of_the_catalog(path: Path) -> None:
    queries = [one["query"] for one in load(path)["templating"]["list"] if one["type"] == "query"]
    assert queries
    for query in queries:
        found = re.fullmatch(r"label_values\((\w+)(?:\{[^}]*\})?, (\w+)\)", query)
        assert found
        assert found[2] in exported()[found[1]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_says_what_each_panel_means_and_places_it_on_its_own(path: Path) -> None:
    dashboard = load(path)
    assert dashboard["uid"] == f"perfd-{path.stem}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_provisioning_names_the_kind_of_source_that_the_dashboards_ask_for() -> None:
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "perfd.yaml").read_text())[
        "datasources"
    ]
    [provider] = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "perfd.yaml").read_text())[
        "providers"
    ]
    assert source["type"] == "prometheus"
    assert provider["type"] == "file"
    variables = {one["name"]: one for path in FILES for one in load(path)["templating"]["list"]}
    assert variables["datasource"]["query"] == source["type"]


class Store:
    """A Prometheus with what one aggregator exported, and the names that it has."""

    def __init__(self, server: PrometheusServer) -> None:
        self.server = server
        self.end_s = 0.0
        self.names: dict[str, set[str]] = {}

    def keep(self, source: Aggregator) -> None:
        """Write the newest round, with its own times."""
        frames = list(source.frames().values())
        self.end_s = max(frame.time_unix_s for frame in frames)
        self.server.write(
            {
                key: [(round(frame.time_unix_s * 1000), value)]
                for frame in frames
                for key, value in zip(frame.keys, frame.values.tolist(), strict=True)
                if value == value
            }
        )
        for frame in frames:
            for key in frame.keys:
                for label, value in key.labels:
                    self.names.setdefault(label, set()).add(value)

    def ever(self, expr: str) -> bool:
        """Whether the expression gave something at any time."""
        found = self.server.query(f"count_over_time(({expr})[2h:5s])", self.end_s)
        assert found.error is None, found.error
        return bool(found.samples)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Store]]:
    with ExitStack() as stack:

        def store(name: str) -> Store:
            return Store(stack.enter_context(prometheus_server(tmp_path_factory.mktemp(name))))

        found = [_recorded(name, store(name)) for name in RECORDINGS]
        yield [*found, _made(store("made"))]


def _recorded(name: str, store: Store) -> Store:
    options = ReplayOptions(recording=bundled(name))
    replay(options, on_progress=lambda progress: store.keep(progress.aggregator))
    return store


def _made(store: Store) -> Store:
    """Two stages on a node whose collectors read all that they can, a serving engine, and a capture."""
    clock = VirtualClock(round(START_S * 1e9))
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        with FakeAgent(running.grpc_address, node="gone", agent_id="gone") as gone:
            gone.hello()
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0), place(1, 1), _hardware_error(), _two_stages())
        given = GpuAllocation(uuid="GPU-0", namespace="team-a", pod="llm-0", container="main")
        agent.send(GpuInfo(index=0, name="H200", uuid="GPU-0"), GpuAllocations(devices=[given]))
        running.start_capture(StartBody(job="llm", profile="default", id="one"))
        for tick in range(TICKS):
            now_s = START_S + 5.0 * tick
            agent.send(*_steps(tick, now_s), *_readings(now_s, tick))
            if tick == 2:
                agent.say(_done(now_s))
            clock.advance(5.0)
            running.tick()
            store.keep(running)
    return store


def _two_stages() -> JobDescription:
    layout = ParallelLayout(world_size=2, tp=1, pp=2, dp=1, micro_batch_size=1, global_batch_size=8)
    return JobDescription(job="llm", framework="megatron", parallel=layout)


def _steps(tick: int, now_s: float) -> list[Record]:
    """Five steps with their timers; the newest third is slower."""
    records: list[Record] = []
    for number in range(5 * tick + 1, 5 * tick + 6):
        seconds = 1.2 if tick > 2 * TICKS // 3 else 1.0
        timers = {
            "forward-backward": PhaseTime(by_rank={0: 0.9, 1: 0.9}),
            "forward-compute": PhaseTime(by_rank={0: 0.2, 1: 0.25}),
            "backward-compute": PhaseTime(by_rank={0: 0.4, 1: 0.5}),
        }
        records.append(step(number, time_s=now_s, step_time_s=seconds))
        records.append(StepPhases(job="llm", step=number, phases=timers))
    return records


def _readings(now_s: float, tick: int) -> list[SampleTable]:
    """Every column of the collectors that read tables: counters that rise, and gauges between 0 and 1."""
    tables = []
    for name in ("host", "nvml", "ranks", "sglang"):
        columns = load_collector(name).columns
        for scope in sorted({column.scope for column in columns}):
            values = {
                column.name: [float(tick) if column.kind is ColumnKind.COUNTER else 0.5]
                for column in columns
                if column.scope is scope
            }
            tables.append(
                SampleTable(scope=scope, times_unix_ns=[round(now_s * 1e9)], entities=["0"], columns=values)
            )
    return tables


def _hardware_error() -> Event:
    return Event(
        kind=EventKind.HARDWARE_ERROR, time_unix_ns=round(START_S * 1e9), message="XID 79", gpu=0, code=79
    )


def _done(now_s: float) -> CaptureStatus:
    return CaptureStatus(
        capture_id="one", state=CaptureState.DONE, time_unix_ns=round(now_s * 1e9), ranks=[0]
    )


OF_SERVERS = re.compile("perfd_(nats|group|partition|gateway|history)_|perfd_exporter_queued_rounds")


@need_prometheus
@pytest.mark.system
@pytest.mark.timeout(300)
def test_every_query_finds_something_in_a_prometheus_filled_from_recordings(stores: Sequence[Store]) -> None:
    nothing = []
    for query in ASKED:
        if OF_SERVERS.search(query.expr):
            # A replay has neither history nor exporters; groups and gateways are real in tests/jetstream.
            continue
        variable = next((name for name in ("job", "node", "server") if f"${name}" in query.expr), "job")
        found = any(
            store.ever(filled_in(query.expr, **{variable: value}))
            for store in stores
            for value in sorted(store.names.get("perfd_job" if variable == "job" else variable, ()))
        )
        if not found:
            nothing.append(str(query))
    assert not nothing, "\n".join(nothing)


@need_prometheus
@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_parts_of_a_step_add_up_to_the_step(stores: Sequence[Store]) -> None:
    [panel] = [one for one in panels(load(GRAFANA / "dashboards" / "job.json")) if one["title"] == "A step"]
    store = stores[0]
    [job] = store.names["perfd_job"]
    parts = [
        next(iter(store.server.query(filled_in(target["expr"], job=job), store.end_s).samples.values()))
        for target in panel["targets"]
    ]
    [step_time_s] = store.server.query("perfd_step_time_seconds", store.end_s).samples.values()
    assert len(parts) == 5
    assert sum(parts) == pytest.approx(step_time_s, rel=0.01)


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's types and a compiler."""
    folder = tmp_path_factory.mktemp("types")
    for name in ("package.json", "package-lock.json", "dashboard.ts"):
        shutil.copy(HERE / "grafana" / name, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    return folder


def compile_dashboard(folder: Path, dashboard: dict[str, Any]) -> str:
    """What the compiler has to say."""
    source = folder / "checked.ts"
    literal = json.dumps(dashboard, indent=1)
    source.write_text(
        f'import type {{ Checked }} from "./dashboard";\nexport const dashboard: Checked = {literal};\n'
    )
    options = [
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--moduleResolution",
        "bundler",
        "--module",
        "esnext",
    ]
    command = [str(folder / "node_modules" / ".bin" / "tsc"), *options, source.name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@need_npm
@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_dashboards_are_of_grafanas_own_types(types: Path) -> None:
    said = {path.stem: compile_dashboard(types, load(path)) for path in FILES}
    assert said == dict.fromkeys(said, "")
    # And the compiler would have said so:
    assert "TS2353" in compile_dashboard(types, {**load(FILES[0]), "titel": "x"})
    assert "TS2322" in compile_dashboard(types, {**load(FILES[0]), "refresh": 5})


def test_an_alert_counts_once_whichever_engine_fires_it(tmp_path: Path) -> None:
    series = [
        'perfd_alerts_firing{perfd_job="a", alertname="PerfdStraggler"}',
        'ALERTS{perfd_job="a", alertname="PerfdStraggler", alertstate="firing", rank="3"}',
        'ALERTS{perfd_job="b", alertname="PerfdRankHangs", alertstate="firing", rank="1"}',
        'ALERTS{perfd_job="b", alertname="PerfdRankHangs", alertstate="firing", rank="2"}',
        'ALERTS{perfd_job="b", alertname="PerfdJobHangs", alertstate="pending"}',
        'ALERTS{perfd_job="b", alertname="Mine", alertstate="firing"}',
        'ALERTS{node="n", alertname="PerfdNodeSuspect", alertstate="firing"}',
    ]
    (shown,) = {one.expr for one in ASKED if (one.dashboard, one.panel) == ("fleet", "Alerts firing")} - {
        one.expr for one in ASKED if one.expr.startswith("max")
    }
    test = {
        "interval": "15s",
        "input_series": [{"series": one, "values": "1x4"} for one in series],
        "promql_expr_test": [
            {
                "eval_time": "30s",
                "expr": filled_in(shown, job=".*"),
                "exp_samples": [{"labels": "{}", "value": 2}],
            }
        ],
    }
    path = tmp_path / "alerts.yaml"
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "15s", "tests": [test]}))
    assert run_tests(read_tests(path)) == []
