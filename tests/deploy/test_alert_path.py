"""From a training log to a capture, with a real Prometheus and a real Alertmanager as the rule engine."""

import os
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest
from deploy.prometheus.stack import JOB, Stack, agent, aggregator, shipped, until
from exporters.support import Receiver

from perfd.aggregator import Aggregator
from perfd.config import AggregatorConfig, RulesConfig
from perfd.model import PhaseTime, StepPhases
from tests.support.fake_agent import FakeAgent
from tests.support.services import alertmanager, free_port, prometheus

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not all(map(shutil.which, ("prometheus", "prometheus-alertmanager"))) and not os.environ.get("CI"),
        reason="needs the Debian packages `prometheus` and `prometheus-alertmanager`",
    ),
]


STALL = "PerfdPipelineStall"
SENT = re.compile(r'perfd_exporter_sent_total{exporter="alertmanager"} [1-9]')
PEOPLE = """
route: {{receiver: people, group_by: [alertname, job], group_wait: 0s, group_interval: 1s}}
receivers:
  - name: people
    webhook_configs: [{{url: "{url}"}}]
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


def test_prometheus_scrapes_the_aggregator_and_keeps_its_labels(stack):
    [(labels, value)] = until(lambda: stack.query("perfd_pipeline_stall_ratio"))
    assert (labels["perfd_job"], value) == (JOB, pytest.approx(0.4556, abs=1e-3))
    assert labels["job"] == "perfd"
    assert stack.query('up{job="perfd"}')[0][1] == 1
    assert stack.query('{exported_job!=""}') == []
    assert {labels["node"] for labels, _ in stack.query("perfd_agent_up")} == {"n1"}


def test_promtool_finds_nothing_to_say_about_the_live_pages(stack):
    until(lambda: stack.query("perfd_pipeline_stall_ratio"))
    for server in (stack.aggregator, stack.agent):
        checked = subprocess.run(
            ["promtool", "check", "metrics"],
            input=server.text("/metrics").encode(),
            capture_output=True,
            check=False,
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_every_rule_that_ships_is_evaluated_without_an_error(stack):
    def rules():
        groups = stack.prometheus.get("/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert len(rules()) > 40
    assert [(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"] == []


def test_an_alert_of_prometheus_becomes_a_capture(stack):
    captures = until(stack.captures)
    capture = next(one for one in captures if one["alert"] == STALL)
    assert (capture["job"], capture["profile"]) == (JOB, "default")
    assert capture["labels"]["severity"] == "warning"
    [alert] = [
        alert
        for alert in stack.prometheus.get("/api/v1/alerts")["data"]["alerts"]
        if alerts_sent(alert, STALL)
    ]
    assert alert["state"] == "firing"
    known = stack.alertmanager.get("/api/v2/alerts")
    assert STALL in {one["labels"]["alertname"] for one in known}
    counted = until(lambda: stack.query('perfd_webhook_alerts_total{outcome="started"}'))
    assert counted[0][1] >= 1


def test_a_job_that_writes_its_own_target_file_is_found(stack):
    (stack.folder / "targets" / "4711.yaml").write_text(
        f"- targets: ['127.0.0.1:{stack.aggregator.port}']\n  labels: {{cluster: c1}}\n"
    )
    found = until(lambda: stack.query(f'perfd_job_ended{{perfd_job="{JOB}",cluster="c1"}}'))
    assert found[0][1] == 0


def test_of_all_pods_only_running_aggregators_are_scraped(tmp_path):
    """The relabelling of kubernetes.yaml, on pods as Prometheus would have discovered them."""
    pods = [
        pod("127.0.0.1:1", "perfd", "aggregator", "http", "Running"),
        pod("127.0.0.1:2", "perfd", "aggregator", "grpc", "Running"),
        pod("127.0.0.1:3", "perfd", "agent", "http", "Running"),
        pod("127.0.0.1:4", "perfd", "aggregator", "http", "Succeeded"),
        pod("127.0.0.1:5", "other", "aggregator", "http", "Running"),
    ]
    (tmp_path / "pods.yaml").write_text("\n".join(pods))
    text = shipped(
        "kubernetes.yaml",
        {"kubernetes_sd_configs:\n      - role: pod": "file_sd_configs:\n      - files: [pods.yaml]"},
    )
    with prometheus(tmp_path, text) as server:
        targets = until(lambda: server.get("/api/v1/targets")["data"]["activeTargets"])
    assert [(one["labels"]["instance"], one["labels"]["namespace"]) for one in targets] == [
        ("127.0.0.1:1", "training")
    ]


def pod(address, name, component, port, phase):
    meta = "__meta_kubernetes"
    return (
        f"- targets: ['{address}']\n"
        f"  labels: {{{meta}_pod_label_app_kubernetes_io_name: {name}, {meta}_namespace: training,"
        f" {meta}_pod_label_app_kubernetes_io_component: {component},"
        f" {meta}_pod_container_port_name: {port}, {meta}_pod_phase: {phase}}}\n"
    )


def test_an_alertmanager_with_a_wrong_token_is_turned_away_and_counted(tmp_path):
    with Stack(tmp_path, alertmanager_token="another") as stack:
        until(lambda: stack.query('perfd_webhook_requests_total{outcome="unauthorized"}'))
        until(lambda: "401" in stack.alertmanager.log)
        assert stack.captures() == []


def test_prometheus_stores_every_series_of_a_page_with_hostile_names(tmp_path):
    names = [
        'a"b',
        "a\\",
        "a\nb",
        "\u00fc\U0001f600",
        "a\x00b",
        "{}",
        'a,b="c"',
        " ",
        "\r",
        "\u2028",
        "\ufeff",
    ]
    config = AggregatorConfig(
        listen="127.0.0.1:0", http_listen="127.0.0.1:0", rules=RulesConfig(builtin=False)
    )
    hostile = Aggregator(config, manual=True)
    hostile.start()
    try:
        with FakeAgent(hostile.grpc_address, node='no"de\n') as sender:
            sender.hello()
            for name in names:
                phases = {phase: PhaseTime(min_s=1.0, max_s=2.0) for phase in names}
                sender.send(StepPhases(job=name, step=1, phases=phases))
            hostile.tick()
            scrape = f"scrape_configs: [{{job_name: perfd, honor_labels: true, scrape_interval: 250ms, \
static_configs: [{{targets: ['{hostile.http_address}']}}]}}]"
            with prometheus(tmp_path, scrape) as server:
                count = 'count({__name__=~"perfd_.+|process_.+|python_.+"})'
                scraped = until(lambda: server.get("/api/v1/query", query=count)["data"]["result"])
                jobs = server.get("/api/v1/label/perfd_job/values")["data"]
        lines = [line for line in hostile.page().split(b"\n") if line and not line.startswith(b"#")]
    finally:
        hostile.stop()
    assert int(scraped[0]["value"][1]) == len(lines)
    assert set(names) <= set(jobs)


def test_a_kill_of_the_aggregator_neither_ends_an_alert_nor_sends_it_again(tmp_path):
    """Here the embedded engine evaluates the rule, and tells the Alertmanager."""
    grpc = f"127.0.0.1:{free_port()}"
    path = tmp_path / "history.sqlite"
    with Receiver() as people, alertmanager(tmp_path, PEOPLE.format(url=people.url)) as server:
        config = f"history: {{path: {path}}}\nexporters: {{alertmanager: {{urls: ['{server.url}']}}}}\n"
        with aggregator(tmp_path, grpc, config) as killed, agent(tmp_path, grpc):

            def known():
                """What Alertmanager knows of the alert: since when it fires."""
                alerts = server.get("/api/v2/alerts")
                return [one["startsAt"] for one in alerts if one["labels"]["alertname"] == STALL]

            before = until(known)
            until(lambda: stored(path, "SELECT 1 FROM alerts WHERE name = ?", STALL))
            until(lambda: stored(path, "SELECT 1 FROM captures WHERE body LIKE ?", f"%{STALL}%"))
            killed.kill()
            killed.start()
            until(lambda: "\nperfd_agents_connected 1" in killed.text("/metrics"))
            until(lambda: SENT.search(killed.text("/metrics")))
            assert known() == before
            captures = killed.get("/api/v1/captures")["captures"]
            assert len([one for one in captures if one["alert"] == STALL]) == 1
        reported = [
            one["status"] for body in people.bodies for one in body["alerts"] if alerts_sent(one, STALL)
        ]
    assert reported == ["firing"]


def alerts_sent(alert, name):
    return alert["labels"]["alertname"] == name


def stored(path, query, *parameters):
    """Whether the history of an aggregator that runs has such a row."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        return reader.execute(query, parameters).fetchone() is not None
