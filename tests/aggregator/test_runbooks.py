"""Pages about alerts: one for each `runbook_url` that ships."""

import urllib.error
import urllib.request

import pytest
import yaml

from perfd.config import RulesConfig
from perfd.rules import builtin_rules
from tests.aggregator.support import aggregator

RULES = [
    rule
    for path in builtin_rules()
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]


@pytest.fixture(scope="module")
def running():
    with aggregator(http_listen="127.0.0.1:0", rules=RulesConfig(builtin=True)) as found:
        yield found


def get(running, path):
    try:
        with urllib.request.urlopen(f"http://{running.http_address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_every_rule_that_ships_has_a_page_of_what_to_do(running):
    assert RULES
    for rule in RULES:
        path = rule["annotations"]["runbook_url"]
        assert path == f"/runbooks/{rule['alert']}"
        status, page = get(running, path)
        assert status == 200
        assert f"<h1>{rule['alert']}</h1>" in page
        assert f"severity {rule['labels']['severity']}" in page
        assert "{{ $labels" not in page
        assert get(running, "/runbooks/")[1].count(f'href="{rule["alert"]}"') == 1


def test_a_page_names_the_labels_of_its_sentences_and_how_long_it_must_hold(running):
    page = get(running, "/runbooks/PerfdGpuIdle")[1]
    assert "GPU GPU of NODE is idle in PERFD_JOB" in page
    assert "when this holds for 5m:" in page
    assert "[5m]) &lt; 0.05" in page


@pytest.mark.parametrize("name", ["Nothing", "%3Cscript%3E", "a/b", "..%2f.."])
def test_an_unknown_alert_is_said_to_be_unknown(running, name):
    status, page = get(running, f"/runbooks/{name}")
    assert status == 404
    assert "<script>" not in page


def test_rules_of_an_operator_have_pages_too_and_cannot_write_html(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "groups: [{name: g, rules: [{alert: Mine, expr: 'perfd_step > 1', annotations: "
        "{summary: '<b>{{ $labels.perfd_job }}</b> at {{ $value | humanize }}'}}]}]"
    )
    rules = RulesConfig(builtin=False, files=[str(mine)])
    with aggregator(http_listen="127.0.0.1:0", rules=rules) as running:
        assert "&lt;b&gt;PERFD_JOB&lt;/b&gt; at VALUE" in get(running, "/runbooks/Mine")[1]
        assert get(running, "/runbooks/PerfdStraggler")[0] == 404
