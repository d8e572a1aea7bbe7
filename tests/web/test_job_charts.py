"""The charts of a job: what is drawn is what the interface returns, with one zoom and cursor."""

from __future__ import annotations

import csv
import io
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfd.aggregator.web_api.charts.gpu_chart import columns_of
from perfd.formatting import duration, percent
from tests.support.chromium import Tab
from tests.support.large_job import large_job

SHOWN = "document.getElementById('mfu')"
COLUMNS = 8


def api(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)


def samples(times: list[float], *gpus: list[float], ranks: list[int | None]) -> Any:
    data = np.full((len(times), len(gpus), COLUMNS), np.nan, np.float32)
    for i, values in enumerate(gpus):
        data[:, i, 0] = values
        data[:, i, 6], data[:, i, 7] = 20e9, 80e9
    return np.array(times, float), data, ranks


def test_gpus_of_several_nodes_are_median_lowest_and_highest() -> None:
    one = samples([0, 1, 2, 3], [0.1] * 4, [0.2] * 4, ranks=[0, 1])
    other = samples([0.5, 1.5, 2.5], [0.9, 0.9, math.nan], ranks=[2])

    found = columns_of([one, other], 2, 1)

    assert found["gpus"] == 3
    assert found["time_unix_s"] == [1.5, 3.0]
    active = found["metrics"]["sm_active_ratio"]
    assert active["median"] == pytest.approx([0.2, 0.2])
    assert active["lowest"] == pytest.approx([0.1, 0.1])
    assert active["highest"] == pytest.approx([0.9, 0.9])
    assert active["rank"] == pytest.approx([0.2, 0.2])
    assert found["metrics"]["memory_used_ratio"]["median"] == pytest.approx([0.25, 0.25])
    assert "power_w" not in found["metrics"]


@pytest.mark.parametrize("parts", [[], [samples([], [], ranks=[0])]])
def test_without_samples_there_is_nothing_to_draw(parts: Any) -> None:
    found = columns_of(parts, 100, None)
    assert (found["time_unix_s"], found["metrics"]) == ([], {})


def test_many_gpus_get_fewer_points() -> None:
    times = list(range(600))
    data = np.ones((600, 16_384, COLUMNS), np.float32)
    found = columns_of([(np.array(times, float), data, [None] * 16_384)], 300, None)
    assert len(found["time_unix_s"]) == 30


@pytest.mark.parametrize(
    "query",
    [
        "series?from=x",
        "series?from=5&to=1",
        "series?to=nan",
        "series?seconds=0",
        "series?seconds=x",
        "gpu_series?points=0",
        "gpu_series?rank=-1",
    ],
)
def test_a_wrong_range_is_refused(query: str, played: Callable[[str], str]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        api(played("dp4"), f"jobs/dp4/{query}")
    refused.value.close()


def test_a_range_has_its_steps_with_loss_and_phases(played: Callable[[str], str]) -> None:
    url = played("dp4")
    every = api(url, "jobs/dp4/series")
    some = api(url, "jobs/dp4/series?from=5&to=9")
    lines = {line["step"]: line for line in api(url, "jobs/dp4/steps")["steps"]}

    assert some["step"] == [5, 6, 7, 8, 9]
    assert some["loss"] == [lines[step]["losses"]["loss"] for step in some["step"]]
    assert set(some["phases_s"]) == {"forward", "backward", "optimizer"}
    at = every["step"].index(5)
    assert some["phases_s"]["forward"][0] == every["phases_s"]["forward"][at] > 0
    assert some["steady"] == every["steady"][at : at + 5]


def test_gpus_have_memory_temperature_and_clock(played: Callable[[str], str]) -> None:
    (job,) = api(played("pp4_few"), "jobs?job=pp4_few")["jobs"]
    assert [gpu["stage"] for gpu in sorted(job["gpus"], key=lambda gpu: gpu["rank"])] == [0, 1, 2, 3]
    assert all(
        20 < gpu["temperature_celsius"] < 100 and 1e8 < gpu["sm_clock_hz"] < 3e9 for gpu in job["gpus"]
    )


@pytest.mark.system
def test_loss_phases_and_gpus_are_the_interfaces(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    series, gpus = api(url, "jobs/dp4/series"), api(url, "jobs/dp4/gpu_series")

    last = series["step"][-1]
    assert tab.text("#loss-chart output") == f"step {last}: {series['loss'][-1]:.4g}"
    phases = tab.text("#phases-chart output")
    for name in ("forward", "backward", "optimizer"):
        assert f"{name} {duration(series['phases_s'][name][-1])}" in phases
    shown = tab.text("#gpu-sm_active_ratio output")
    assert shown.split(": ")[1] == percent(gpus["metrics"]["sm_active_ratio"]["median"][-1])
    says = tab.run("document.getElementById('gpu-power_w-drawing').ariaLabel")
    assert says.startswith("Power over step ")
    assert "highest" in says


@pytest.mark.system
def test_a_zoom_is_one_for_all_charts_and_can_be_reset(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    buttons = (
        "[...document.querySelectorAll('.chart-tools .reset')].filter((one) => one.checkVisibility()).length"
    )
    assert tab.run(buttons) == 0

    tab.drag("#mfu-chart .u-over", 0.3, 0.6)
    tab.wait(f"{buttons} >= 3")
    tab.wait("performance.getEntriesByType('resource').some((one) => one.name.includes('series?from='))")
    tab.run("document.querySelector('#loss-chart .reset').click()")
    tab.wait(f"{buttons} === 0")

    tab.run("document.querySelector('#mfu-chart .plot').focus()")
    tab.press("+")
    tab.wait(f"{buttons} >= 3")
    tab.press("-")
    tab.wait(f"{buttons} === 0")


FEWER_POINTS = """(async () => {
    const { lineChart } = await import("${URL}/static/chart.js");
    const { chartGroup } = await import("${URL}/static/zoom.js");
    const group = chartGroup("test");
    const chart = lineChart({ id: "test", name: "Test", show: String, group });
    const draw = (count) => {
        const x = [...Array(count).keys()];
        chart.update({ x, showX: String, lines: [{ name: "a", values: x, color: "--ink" }], width: 600 });
    };
    document.querySelector("main").prepend(chart.element);
    draw(20);
    const plot = chart.element.querySelector(".plot");
    const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("End");
    await new Promise((done) => setTimeout(done));
    draw(6);
    press("+");
    return group.range;
})()"""


@pytest.mark.system
def test_a_chart_that_just_got_fewer_points_zooms_around_its_last(
    tab: Tab, played: Callable[[str], str]
) -> None:
    """As when a zoom is reset, and chosen again before its steps have come."""
    url = played("dp4")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    low, high = tab.run(FEWER_POINTS.replace("${URL}", url))
    assert (low, high) == (2.5, 5)


@pytest.mark.system
def test_a_chart_is_saved_as_the_numbers_of_the_interface(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    series = api(url, "jobs/dp4/series")
    tab.run("window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return 'data:,'; }; 0")
    tab.run("document.querySelector('#time-chart .chart-tools button:nth-of-type(2)').click()")
    rows = list(csv.DictReader(io.StringIO(tab.run("saved[0].text()"))))

    assert [int(row["step"]) for row in rows] == series["step"]
    assert [float(row["Step time"]) for row in rows] == series["step_time_s"]
    tab.run("document.querySelector('#time-chart .chart-tools button:nth-of-type(3)').click()")
    tab.wait("saved.length === 2")
    assert tab.run("saved[1].type") == "image/png"
    assert tab.run("saved[1].size") > 1000


@pytest.mark.system
def test_charts_over_time_are_in_the_address(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp4")
    tab.open(f"{url}/jobs/dp4", SHOWN)
    tab.run("document.querySelector('.choice button:last-of-type').click()")
    tab.wait("location.search === '?x=time'")
    tab.wait("/^\\d\\d:\\d\\d:\\d\\d: /.test(document.querySelector('#mfu-chart output').innerText)")
    assert tab.text("#mfu-chart output").endswith(percent(api(url, "jobs/dp4/series")["mfu_ratio"][-1]))


@pytest.mark.system
def test_a_range_is_chosen_and_stays_in_the_address(tab: Tab) -> None:
    with large_job(64, 3000) as job:
        tab.open(f"{job.url}/jobs/{job.name}", "document.querySelector('#time-chart-drawing canvas')")
        label = "document.getElementById('time-chart-drawing').ariaLabel"
        # A point is the last of five steps.
        assert tab.run(label).startswith("Step time over step 5 to step 3000. ")
        tab.run(
            "(() => { const box = document.getElementById('range'); box.value = '900';"
            " box.dispatchEvent(new Event('change')); })()"
        )
        expected = api(job.url, f"jobs/{job.name}/series?seconds=900")["step"]
        assert (expected[0], expected[-1]) == (2101, 3000)
        tab.wait(f"{label}.startsWith('Step time over step 2101 to step 3000. ')")
        assert tab.run("location.search") == "?range=900"

        tab.open(
            f"{job.url}/jobs/{job.name}?range=900", "document.querySelector('#time-chart-drawing canvas')"
        )
        assert tab.run(label).startswith("Step time over step 2101 to step 3000. ")
        assert tab.run("document.getElementById('range').value") == "900"
        job.advance()
        tab.wait(f"{label}.includes(' to step 3001. ')")
        assert tab.run(label).startswith("Step time over step 2102 ")
