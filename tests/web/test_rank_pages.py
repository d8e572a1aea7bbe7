"""Ranks as a grid, and the page of one rank."""

from __future__ import annotations

import json
import statistics
import urllib.request
from collections.abc import Callable

import pytest

from perfd.formatting import percent, power
from tests.support.chromium import Tab
from tests.support.page_server import StandIn, job_entry

pytestmark = pytest.mark.system


def test_the_only_rank_is_not_compared_with_the_median(tab: Tab, stand_in: StandIn) -> None:
    for ranks, compared in ((1, 0), (2, 1)):
        stand_in.answers["jobs"] = {"jobs": [job_entry("llm", ranks=ranks, slow=None)]}
        tab.open(f"{stand_in.url}/jobs/llm", "document.querySelector('[data-section=ranks] table')")
        assert tab.count("[data-section=ranks] figcaption .swatch.above") == compared


def test_a_grid_has_a_row_per_node_and_opens_the_rank(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("llm", ranks=1024, slow=700)]}
    tab.open(f"{stand_in.url}/jobs/llm", "document.querySelector('#rank-grid')?.style.height")
    label = tab.run("document.getElementById('rank-grid').ariaLabel")
    assert label.startswith("1,024 ranks by node: Tensor active from 20.0% to 38.0%")
    tab.run(
        "(() => { const box = document.getElementById('grid-metric'); box.value = 'power_w';"
        " box.dispatchEvent(new Event('change')); })()"
    )
    tab.wait("document.getElementById('rank-grid').ariaLabel.includes('Power from 570 W to 650 W')")

    tab.run(
        "(() => { const grid = document.querySelector('#rank-grid'), box = grid.getBoundingClientRect();"
        " const place = {clientX: box.left + 94, clientY: box.top + 2, bubbles: true};"
        " grid.dispatchEvent(new PointerEvent('pointermove', place)); })()"
    )
    assert tab.text("#grid-readout").startswith("rank 0 (")
    assert "Power 570 W" in tab.text("#grid-readout")
    tab.run(
        "(() => { const grid = document.querySelector('#rank-grid'), box = grid.getBoundingClientRect();"
        " setTimeout(() => grid.dispatchEvent(new MouseEvent('click',"
        " {clientX: box.left + 94, clientY: box.top + 2}))); })()"
    )
    tab.wait("location.pathname === '/jobs/llm/ranks/0'")


@pytest.mark.parametrize("ranks", [16, 1024])
def test_a_grid_is_drawn_where_other_drawings_follow_it(tab: Tab, stand_in: StandIn, ranks: int) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("llm", ranks=ranks, slow=7)]}
    tab.open(f"{stand_in.url}/jobs/llm", "document.querySelector('#rank-grid')?.style.height")
    tab.run("document.getElementById('rank-grid').scrollIntoView()")
    tab.wait(
        "(() => { const grid = document.getElementById('rank-grid'), { width, height } = grid;"
        " const { data } = grid.getContext('2d').getImageData(width / 2, 0, 1, height);"
        " return data.some((part) => part > 0); })()"
    )


def test_few_ranks_are_a_table_only(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("llm", ranks=4, slow=1)]}
    tab.open(f"{stand_in.url}/jobs/llm", "document.getElementById('ranks')")
    assert tab.count("#rank-grid") == 0


def test_the_page_of_a_rank_has_the_interfaces_numbers(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4_slow2")
    with urllib.request.urlopen(f"{url}/api/v1/jobs?job=dp4_slow2", timeout=10) as answer:
        (job,) = json.load(answer)["jobs"]
    (gpu,) = [one for one in job["gpus"] if one["rank"] == 2]
    tab.open(f"{url}/jobs/dp4_slow2/ranks/2", "document.getElementById('rank-numbers')")

    assert tab.text("#rank").startswith("rank 2 culprit")
    assert gpu["node"] in tab.text("#rank")
    assert power(gpu["power_w"]) in tab.text("[data-key=power_w]")
    assert percent(gpu["tensor_active_ratio"]) in tab.text("[data-key=tensor_active_ratio]")
    assert f"{gpu['temperature_celsius']:.0f} °C" in tab.text("[data-key=temperature_celsius]")
    usual = statistics.median(one["temperature_celsius"] for one in job["gpus"])
    assert tab.text("[data-key=temperature_celsius]").endswith(
        f"{gpu['temperature_celsius'] - usual:+.0f} °C"
    )
    assert tab.text("[data-key=power_w]").endswith("%")
    tab.wait("document.querySelector('#gpu-power_w output').innerText.includes('this rank')")


def test_the_ranks_of_a_job_that_ended_have_the_readings_of_its_last_step(
    tab: Tab, played: Callable[[str], str]
) -> None:
    """Not those of the idle GPUs after it."""
    url = played("dp2_nccl")
    with urllib.request.urlopen(f"{url}/api/v1/jobs?job=dp2_nccl", timeout=10) as answer:
        (job,) = json.load(answer)["jobs"]
    assert job["ended"]
    used = job["memory"]["max_used_ratio"]
    assert max(gpu["memory_used_ratio"] for gpu in job["gpus"]) == pytest.approx(used, rel=0.02)

    tab.open(f"{url}/jobs/dp2_nccl", "document.getElementById('ranks')")
    assert percent(used) in tab.text("#memory")
    assert percent(used) in tab.text("#ranks")
    # Its page has no sign of being live.
    sign = "getComputedStyle(document.getElementById('updated'), '::before').content"
    assert tab.run(sign) == "none"


def test_a_rank_that_is_not_there_is_said_to_be_missing(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("llm", ranks=4)]}
    tab.open(f"{stand_in.url}/jobs/llm/ranks/77", "document.querySelector('main .empty')")
    assert "llm has no numbers of rank 77." in tab.text("main")
