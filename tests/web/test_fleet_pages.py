"""The fleet's jobs: filtered, ordered and paged by the aggregator, as the page asks by its address."""

from __future__ import annotations

import json
import math
import statistics
import urllib.request
from typing import Any

import numpy as np
import pytest

from perfd.aggregator.web_api.charts import trend
from perfd.aggregator.web_api.fleet_pages import fleet_page
from perfd.errors import PerfdError
from tests.support.chromium import Tab
from tests.support.large_job import large_job
from tests.support.page_server import StandIn, fleet_row

SLOW = {"kind": "straggler", "gain_ratio": 0.2, "culprits": [{"kind": "rank", "id": "3"}], "culprit_count": 1}


def fleet(*rows: dict[str, Any]) -> dict[str, Any]:
    none = {"count": 0, "connected": 0, "up": 0}
    return {"jobs": list(rows), "alerts": [], "agents": none, "servers": none}


ROWS = (
    fleet_row("b-10", owner="ann", cluster="east", wasted_gpu_h=3.0),
    fleet_row("b-9", owner="bob", cluster="east", wasted_gpu_h=None, silent_s=31.0),
    fleet_row("a", owner="ann", cluster="west", wasted_gpu_h=9.0, bottleneck=SLOW),
    fleet_row("old", owner=None, cluster=None, wasted_gpu_h=1.0, ended=True, framework="deepspeed"),
)


def names(**query: str) -> list[str]:
    return [row["name"] for row in fleet_page(fleet(*ROWS), query)["jobs"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["a", "b-10", "b-9", "old"]),
        ({"sort": "name"}, ["a", "b-9", "b-10", "old"]),
        ({"sort": "wasted", "down": "1"}, ["a", "b-10", "old", "b-9"]),
        ({"sort": "wasted"}, ["old", "b-10", "a", "b-9"]),
        ({"state": "silent"}, ["b-9"]),
        ({"cause": "straggler"}, ["a"]),
        ({"owner": "ann", "cluster": "east"}, ["b-10"]),
        ({"framework": "deepspeed"}, ["old"]),
        ({"q": "ANN west"}, ["a"]),
        ({"q": "nothing"}, []),
        ({"limit": "2", "offset": "1"}, ["b-10", "b-9"]),
        ({"limit": "2", "offset": "9"}, []),
    ],
)
def test_what_is_asked_for_is_answered(query: dict[str, str], found: list[str]) -> None:
    assert names(**query) == found


def test_counts_and_filters_are_of_all_jobs_whatever_is_shown() -> None:
    page = fleet_page(fleet(*ROWS), {"owner": "bob", "limit": "1"})

    assert page["page"] == {"offset": 0, "limit": 1, "matched": 1, "total": 4}
    assert page["counts"] == {"running": 2, "silent": 1, "ended": 1, "held_up": 1, "firing_alerts": 0}
    assert page["filters"]["owner"] == [{"value": "ann", "count": 2}, {"value": "bob", "count": 1}]


@pytest.mark.parametrize("silent_s", [30.0, 30.1])
def test_a_job_is_silent_after_30_seconds(silent_s: float) -> None:
    (row,) = fleet_page(fleet(fleet_row("a", silent_s=silent_s)), {})["jobs"]
    assert row["state"] == ("running" if silent_s == 30.0 else "silent")


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "-1"}, {"offset": "x"}, {"sort": "x"}]
)
def test_a_wrong_query_is_a_sentence(query: dict[str, str]) -> None:
    with pytest.raises(PerfdError, match=r"must be .*\.$"):
        fleet_page(fleet(*ROWS), query)


@pytest.mark.system
def test_filters_are_in_the_address_and_survive_a_reload(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["fleet"] = fleet(*ROWS)
    tab.open(f"{stand_in.url}/", "document.querySelector('#jobs')")
    tab.run(
        "(() => { const box = document.getElementById('filter-owner'); box.value = 'ann';"
        " box.dispatchEvent(new Event('change')); })()"
    )
    tab.wait("document.querySelector('.count').innerText === '2 of 4'")
    assert tab.run("location.search") == "?owner=ann"

    tab.open(f"{stand_in.url}/?owner=ann&sort=wasted", "document.querySelector('#jobs')")
    assert tab.run("[...document.querySelectorAll('#jobs a')].map((one) => one.innerText)") == ["b-10", "a"]
    assert tab.run("document.getElementById('filter-owner').value") == "ann"


@pytest.mark.system
def test_ended_jobs_of_history_can_be_chosen_where_none_is_in_memory(tab: Tab, stand_in: StandIn) -> None:
    states = "[...(document.getElementById('filter-state')?.options ?? [])].map((one) => one.value)"
    new = {"kind": "unknown", "name": "not analyzed yet", "gain_ratio": None, "culprits": []}
    stand_in.answers["fleet"] = {**fleet(fleet_row("a", analyzed=False, bottleneck=new)), "stored": True}
    tab.open(f"{stand_in.url}/", "document.querySelector('#jobs')")
    assert tab.run(states) == ["", "running", "ended"]
    assert "not analyzed yet" in tab.text("#jobs")

    stand_in.answers["fleet"] = fleet(fleet_row("a"))
    tab.open(f"{stand_in.url}/", "document.querySelector('#jobs')")
    assert tab.run(states) == []


@pytest.mark.system
def test_of_5000_jobs_100_go_over_the_network(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["fleet"] = fleet(*(fleet_row(f"job-{number}") for number in range(5000)))
    tab.open(f"{stand_in.url}/?offset=4900", "document.querySelector('#jobs')")

    assert tab.count("#jobs tbody tr") == 100
    assert "4901 to 5000 of 5000" in tab.text(".pages")
    assert tab.run("document.getElementById('jobs-next').disabled")
    size = (
        "performance.getEntriesByType('resource').find((one) => one.name.includes('fleet')).decodedBodySize"
    )
    assert tab.run(size) < 100_000


def test_a_row_has_the_step_times_of_its_last_hour_if_asked_for() -> None:
    with large_job(64, 5000) as job:
        with urllib.request.urlopen(f"{job.url}/api/v1/fleet?trend=1", timeout=10) as answer:
            (row,) = json.load(answer)["jobs"]
        with urllib.request.urlopen(f"{job.url}/api/v1/fleet", timeout=10) as answer:
            (plain,) = json.load(answer)["jobs"]
        with urllib.request.urlopen(
            f"{job.url}/api/v1/jobs/{job.name}/steps?from=1401", timeout=10
        ) as answer:
            newest = json.load(answer)["steps"]
    assert "trend_step_time_s" not in plain
    assert len(newest) == 1000
    # 3,600 steps of a second, 120 a point; the 1,000 that were asked for begin with the first.
    times = [one["step_time_s"] for one in newest]
    medians = [float(f"{statistics.median(times[i : i + 120]):.3g}") for i in range(0, 960, 120)]
    assert len(row["trend_step_time_s"]) == 30
    assert row["trend_step_time_s"][:8] == medians


@pytest.mark.parametrize(
    ("times", "values", "found"),
    [
        ([], [], []),
        ([math.nan], [1.0], []),
        ([0.0, 10_000.0, 13_600.0], [9.0, 5.0, 1.0], [1.0]),
        ([0.0, 10_001.0, 13_600.0], [9.0, 5.0, 1.0], [5.0, 1.0]),
        ([0.0, 1.0, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0]),
    ],
)
def test_a_trend_is_of_an_hour_before_the_newest_step(
    times: list[float], values: list[float], found: list[float]
) -> None:
    assert trend(np.array(times), np.array(values)) == found


@pytest.mark.system
def test_a_row_shows_its_trend_as_a_line(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["fleet"] = fleet(
        fleet_row("a", trend_step_time_s=[1.0, 1.0, 2.0, None, 1.5]), fleet_row("b", trend_step_time_s=[])
    )
    tab.open(f"{stand_in.url}/", "document.querySelector('#jobs .sparkline')")
    assert tab.count("#jobs .sparkline") == 1
    says = tab.run("document.querySelector('.sparkline').ariaLabel")
    assert says == "Step time of the last hour: 1000.0 ms to 2000.0 ms, newest 1500.0 ms"
    points = tab.run("document.querySelector('.sparkline path').getAttribute('d')")
    # Low, low, high, a gap, half way.
    heights = [float(point.split()[1]) for point in points.replace("L", "M").split("M")[1:]]
    assert (points.count("M"), points.count("L")) == (2, 2)
    assert heights == [18.0, 18.0, 2.0, 10.0]

    stand_in.answers["fleet"]["jobs"][0]["trend_step_time_s"] = [1.0, 3.0]
    stand_in.live.notify()
    tab.wait("document.querySelector('.sparkline').ariaLabel.includes('3000.0 ms')")
