"""In a real browser, the page shows what the interface tells."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from perfd.formatting import count, duration, flops_per_s, percent, power
from perfd.recording import bundled_names
from tests.support.chromium import Tab

pytestmark = pytest.mark.system
RECORDINGS = bundled_names()
SHOWN = "document.getElementById('mfu')"


def api(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_job_shows_what_the_api_returns(recording: str, tab: Tab, played: Callable[[str], str]) -> None:
    url = played(recording)
    tab.open(f"{url}/jobs/{recording}", SHOWN)
    (job,) = api(url, f"jobs?job={recording}")["jobs"]

    finding = job["bottleneck"]
    assert all(f"{who['kind']} {who['id']}" in tab.text("#headline") for who in finding["culprits"])
    assert finding["gain_ratio"] is None or percent(finding["gain_ratio"]) in tab.text("#headline")
    assert tab.text("#evidence").splitlines() == finding["evidence"]
    assert job["ended"]
    clock = any("SM clock is" in line for line in finding["evidence"])
    unknown = finding["kind"] == "straggler" and not clock
    label = "The cause is not known. To find it in" if unknown else "For"
    assert tab.text("#advice") == f"{label} the next run: {finding['advice']}"
    assert tab.text("#mfu") == percent(job["efficiency"]["mfu_ratio"])
    assert tab.text("#step-time") == duration(job["step_time_s"]["median"])
    assert tab.text("#tokens") == count(job["efficiency"]["tokens_per_s"])
    assert tab.text("#flops") == flops_per_s(job["efficiency"]["model_flops_per_s_per_gpu"])
    assert tab.text("#communication") == percent(job["communication"]["share_ratio"])
    stall = job["pipeline"]["stall_ratio"]
    assert tab.count("#stall") == (stall is not None)
    assert stall is None or tab.text("#stall") == percent(stall)
    assert "-" not in tab.run(
        "[...document.querySelectorAll('.numbers dd:nth-of-type(1)')].map((one) => one.innerText)"
    )
    assert tab.text("#data") == percent(job["data"]["share_ratio"])
    assert tab.text("#memory") == percent(job["memory"]["max_used_ratio"])
    for part in ("forward_ratio", "backward_ratio"):
        assert percent(job["breakdown"][part]) in tab.text("#breakdown")
    if job["pipeline"]["bubble_theory_ratio"]:
        shown = [percent(stage["stall_ratio"]) for stage in job["pipeline"]["stages"]]
        assert all(stall in tab.text("#stages") for stall in shown)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_the_screen_does_not_contradict_itself(
    recording: str, tab: Tab, played: Callable[[str], str]
) -> None:
    url = played(recording)
    summary = api(url, f"jobs/{recording}")["jobs"][0]
    (job,) = api(url, f"jobs?job={recording}")["jobs"]
    (row,) = api(url, f"fleet?q={recording}")["jobs"]
    first = job["bottleneck"]
    shared = ("kind", "name", "sentence", "gain_ratio")
    assert summary["findings"][0].items() <= summary["bottleneck"].items()
    # Its figures are of the whole run, those of the page of the newest steps.
    assert all(summary["bottleneck"][key] == first[key] for key in ("kind", "sentence", "culprits"))
    assert all(row["bottleneck"][key] == first[key] for key in shared)
    ranked = [first, *job["other_findings"]]
    assert [one["kind"] for one in summary["findings"]] == [one["kind"] for one in ranked]
    gains = [one["gain_ratio"] for one in ranked if one["limits_job"] and one["gain_ratio"]]

    tab.open(f"{url}/jobs/{recording}", SHOWN)

    headline = tab.text("#headline")
    assert headline.startswith(first["sentence"])
    drawn = tab.run("[...document.querySelectorAll('.cost')].map((one) => one.dataset.kind)")
    assert drawn == [one["kind"] for one in ranked if one["limits_job"] and one["gain_ratio"]][:4]
    for line, gain in zip(
        tab.run("[...document.querySelectorAll('.cost-line')].map((one) => one.innerText)"),
        gains,
        strict=False,
    ):
        assert line.endswith(percent(gain))
    if first["limits_job"] and first["gain_ratio"]:
        assert f"{percent(first['gain_ratio'])} of the time" in headline
        assert first["certainty"] in headline
    tab.open(url, f"document.getElementById('job-{recording}')")
    limited = tab.run(f"document.getElementById('job-{recording}').closest('tr').innerText")
    assert first["name"] in limited


@pytest.mark.parametrize("recording", ["dp4_slow2", "dp2_nccl"])
def test_every_cell_of_the_ranks_is_the_interfaces(
    recording: str, tab: Tab, played: Callable[[str], str]
) -> None:
    url = played(recording)
    tab.open(f"{url}/jobs/{recording}", SHOWN)
    (job,) = api(url, f"jobs?job={recording}")["jobs"]

    tab.wait("document.getElementById('ranks')")
    rows = tab.run("[...document.querySelectorAll('#ranks tbody tr')].map((row) => row.textContent)")
    assert len(rows) == len(job["gpus"])
    for row, gpu in zip(rows, job["gpus"], strict=True):
        text = row.replace("\N{NO-BREAK SPACE}", " ")
        assert f"rank {gpu['rank']}" in text
        assert f"{gpu['node']}/{gpu['gpu']}" in text
        assert power(gpu["power_w"]) in text
        for name in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"):
            assert percent(gpu[name]) in text


@pytest.mark.parametrize("path", ["jobs", "reports/jobs"])
def test_a_printed_job_has_all_columns_of_its_tables(
    path: str, tab: Tab, played: Callable[[str], str]
) -> None:
    tab.paper()
    tab.open(f"{played('dp2_nccl')}/{path}/dp2_nccl", "document.querySelector('table')")
    tab.wait("[...document.querySelectorAll('table')].some((one) => one.innerText.includes('vm'))")
    assert tab.cut_off() == []
    if path == "jobs":
        assert "Computation limits this job" in tab.text("#headline")
        left = "[...document.querySelectorAll('summary, nav')].some((one) => one.checkVisibility())"
        assert not tab.run(left)


def test_the_straggler_stands_out_among_the_ranks(tab: Tab, played: Callable[[str], str]) -> None:
    tab.open(f"{played('dp4_slow2')}/jobs/dp4_slow2", SHOWN)

    assert "rank 2" in tab.text("#ranks tr.culprit")
    assert tab.count("#ranks tr.culprit") == 1
    assert tab.count("#ranks td.above") == tab.count("#ranks tr.culprit td.above") > 0


def requested_capture(url: str) -> Any:
    """A capture of pp4_few by hand, once its agent has refused it: a recording has no processes."""
    if not api(url, "captures")["captures"]:
        body = json.dumps({"job": "pp4_few"}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/api/v1/captures", body, headers)
        urllib.request.urlopen(request, timeout=10).close()
    for _ in range(1000):
        (capture,) = api(url, "captures")["captures"]
        if capture["state"] == "refused":
            return capture
        time.sleep(0.01)
    raise AssertionError(capture)


def test_alerts_and_captures_are_marked_at_their_steps(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("pp4_few")
    capture = requested_capture(url)
    tab.open(f"{url}/jobs/pp4_few", SHOWN)
    tab.wait("document.querySelector('.mark.capture')")
    (alert,) = api(url, "alerts?job=pp4_few")["alerts"]

    marked = tab.run("[...document.querySelectorAll('#mfu-chart .mark')].map((mark) => mark.ariaLabel)")
    assert f"{alert['name']}, step {alert['first_step']}" in marked
    assert any(text.startswith(f"capture {capture['id']}, step ") for text in marked)
    assert alert["name"] in tab.text("#alerts")
    assert capture["id"] in tab.text("#captures")


def test_arrow_keys_read_single_steps_as_the_interface_has_them(
    tab: Tab, played: Callable[[str], str]
) -> None:
    url = played("dp4")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    series = api(url, "jobs/dp4/series")
    tab.run("document.getElementById('mfu-chart-drawing').focus()")
    tab.press("Home")

    for chart, column, show in (("mfu", "mfu_ratio", percent), ("time", "step_time_s", duration)):
        # Both charts stand at the same step.
        tab.wait(f"document.querySelector('#{chart}-chart output').innerText.startsWith('step 1:')")
        assert tab.text(f"#{chart}-chart output").startswith(f"step 1: {show(series[column][0])}")
    tab.press("End")
    last = series["step"][-1]
    tab.wait(f"document.querySelector('#mfu-chart output').innerText.startsWith('step {last}:')")


def test_a_key_reads_a_chart_that_was_not_drawn_before(tab: Tab, played: Callable[[str], str]) -> None:
    """As on a slow machine, where a key is pressed before the browser says that the chart is in view."""
    url = played("dp4")
    tab.before_each_page("window.IntersectionObserver = class { observe() {} unobserve() {} };")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    assert tab.count("#mfu-chart canvas") == 0
    tab.run("document.getElementById('mfu-chart-drawing').focus()")
    tab.press("Home")
    tab.wait("document.querySelector('#mfu-chart output').innerText.startsWith('step 1:')")


def test_a_chart_that_is_drawn_later_stands_where_the_others_do(
    tab: Tab, played: Callable[[str], str]
) -> None:
    url = played("dp4")
    tab.before_each_page("window.IntersectionObserver = class { observe() {} unobserve() {} };")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    tab.run("document.getElementById('mfu-chart-drawing').focus()")
    tab.press("Home")
    tab.wait("document.querySelector('#mfu-chart output').innerText.startsWith('step 1:')")
    # Draws all that was not in view.
    tab.run("window.dispatchEvent(new Event('beforeprint'))")
    tab.wait("document.querySelector('#time-chart output').innerText.startsWith('step 1:')")
    assert tab.text("#mfu-chart output").startswith("step 1:")


def test_the_fleet_lists_the_job_and_what_limits_it(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4_slow2")
    tab.open(f"{url}/", "document.getElementById('jobs')")
    (row,) = api(url, "fleet")["jobs"]

    assert tab.text("[id='job-dp4_slow2']") == "dp4_slow2"
    assert "straggler: rank 2" in tab.text("#jobs")
    assert percent(row["mfu_ratio"]) in tab.text("#jobs")
    assert percent(row["bottleneck"]["gain_ratio"]) in tab.text("#jobs")
    assert "1 of 1 agent connected" in tab.text("main")


def test_the_agents_are_those_of_the_interface(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4")
    tab.open(f"{url}/agents", "document.getElementById('agents')")
    (agent,) = api(url, "agents")["agents"]

    assert agent["node"] in tab.text("#agents")
    assert f"{agent['batches']:,}" in tab.text("#agents")


def test_captures_show_how_they_ended(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("pp4_few")
    capture = requested_capture(url)
    tab.open(f"{url}/jobs/pp4_few/captures", "document.querySelector('article')")

    shown = tab.text("article")
    assert capture["id"] in shown
    assert capture["state"] in shown
    assert shown.count(capture["reason"]) == 1


def test_the_report_of_a_job_opens_from_its_page(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4_slow2")
    tab.open(f"{url}/jobs/dp4_slow2", SHOWN)
    (job,) = api(url, "jobs?job=dp4_slow2")["jobs"]
    tab.run("document.getElementById('report').click()")
    tab.wait("location.pathname.startsWith('/reports/') && document.querySelector('.headline')")

    assert "How job dp4_slow2 runs" in tab.text("h1")
    assert percent(job["efficiency"]["mfu_ratio"]) in tab.text("main")


def test_what_an_agent_lacks_is_shown_as_the_interface_has_it(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4")
    tab.open(f"{url}/agents", "document.getElementById('agents')")
    (agent,) = api(url, "agents")["agents"]

    shown = tab.text("#agents")
    # The node of a recording has no tool for captures.
    assert [one["what"] for one in agent["missing"]]
    for one in agent["missing"]:
        assert f"{one['what']} {one['words']}" in shown
        assert one["command"] is None or one["command"] in shown
    assert "1 agent with something missing" in tab.text("main")
