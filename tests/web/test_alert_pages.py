"""The page of all alerts: firing and past ones, and silencing."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

import pytest

from tests.support.chromium import Tab
from tests.support.page_server import Response, StandIn, alert_entry

pytestmark = pytest.mark.system
ROWS = "[...document.querySelectorAll('#alert-list tbody tr')].map((row) => row.innerText)"


def test_alerts_have_the_interfaces_value_time_job_and_runbook(
    tab: Tab, played: Callable[[str], str]
) -> None:
    url = played("pp4_few")
    tab.open(f"{url}/alerts", "document.querySelector('#alert-list')")
    with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=10) as answer:
        document = json.load(answer)

    rows = tab.run(ROWS)
    assert len(rows) == document["count"] == len(document["alerts"])
    for alert in document["alerts"]:
        (row,) = [one for one in rows if one.startswith(alert["name"])]
        assert alert["annotations"]["summary"] in row
        assert alert["state"] in row
        assert alert["value"] is None or f"{alert['value']:,.3f}" in row or f"{alert['value']:,.0f}" in row
        assert alert["job"] in row
    first = document["alerts"][0]
    assert tab.run("document.querySelector('#alert-list a').pathname") == f"/runbooks/{first['name']}"
    tab.run("document.querySelector('#alert-list a').click()")
    tab.wait("location.pathname.startsWith('/runbooks/') && document.querySelector('h1')")


def test_firing_alerts_come_before_past_ones(tab: Tab, stand_in: StandIn) -> None:
    over = [alert_entry(f"Old{n}", state="resolved", resolved_at_unix_s=1e9 + 65) for n in range(600)]
    stand_in.answers["alerts"] = {"alerts": [*over, alert_entry("Slow", captures=["c1"])]}
    tab.open(f"{stand_in.url}/alerts", "document.querySelector('#alert-list')")
    assert tab.text("h1") == "1 firing alert"
    assert "600 past alerts, of which the newest 500 are shown" in tab.text("main")
    rows = tab.run(ROWS)
    assert len(rows) == 100
    assert "Rank 3 is slow." in rows[0]
    assert "2001-09-09 01:46:45 UTC" in rows[0]
    assert "1.700" in rows[0]
    assert "60.0 s" in rows[1]
    assert tab.run("document.querySelector('#alert-list a[href$=c1]').pathname") == "/jobs/llama/captures/c1"
    # Alerts cannot be silenced here, so there is no button.
    assert tab.count("#alert-list tbody button") == 0


def test_a_silence_has_the_alerts_labels_and_the_token(tab: Tab, stand_in: StandIn) -> None:
    alert = alert_entry("Slow")
    stand_in.answers["alerts"] = {"alerts": [alert]}
    stand_in.answers["silences"] = {"available": True, "reason": None, "id": "s-1"}
    tab.open(f"{stand_in.url}/alerts", "document.querySelector('#alert-list')")
    tab.run("document.querySelector('#alert-list tbody button').click()")
    tab.run("document.getElementById('silence-by').value = 'ann'")
    tab.run("document.getElementById('silence-length').value = '28800'")
    tab.run("document.getElementById('capture-token').value = 'word'")
    tab.run("document.querySelector('dialog[open] button').click()")
    tab.wait("document.querySelector('#alert-list output').innerText === 'Silenced: s-1'")
    body = {"labels": alert["labels"], "duration_s": 28_800, "by": "ann", "comment": ""}
    assert stand_in.posted == [("silences", body, "Bearer word")]


def test_without_a_valid_token_the_page_names_the_required_one(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["alerts"] = {"alerts": [alert_entry("Slow")]}
    stand_in.answers["silences"] = {"available": True, "reason": None}
    tab.open(f"{stand_in.url}/alerts", "document.querySelector('#alert-list')")
    stand_in.answers["silences"] = Response(status=401, body=b'{"error": "No."}')
    tab.run("document.querySelector('#alert-list tbody button').click()")
    tab.run("document.getElementById('silence-by').value = 'ann'")
    tab.run("document.querySelector('dialog[open] button').click()")
    tab.wait("document.querySelector('#alert-list output').innerText.includes('http_token_file')")


def test_the_page_says_why_alerts_cannot_be_silenced(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["alerts"] = {"alerts": [alert_entry("Slow")]}
    stand_in.answers["silences"] = {"available": False, "reason": "Silences need a token."}
    tab.open(f"{stand_in.url}/alerts", "document.querySelector('#alert-list')")
    assert "Silences need a token." in tab.text("main")
    assert tab.count("#alert-list tbody button") == 0
