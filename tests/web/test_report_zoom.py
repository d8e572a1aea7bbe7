"""Charts of reports zoom, with the page's code: in a file and from an aggregator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from exporters.rounds import job_round

from perfd.aggregator.web_api.report_routes import report_routes
from perfd.cli import main
from perfd.net import HttpServer
from perfd.report.render.html import to_html
from perfd.report.sources.from_summary import report_of_summary
from tests.support import example_traces
from tests.support.chromium import Browser, Tab

pytestmark = pytest.mark.system

LANES = "svg[data-axis=time]"
VIEW = "document.querySelector('svg[data-axis=%s] svg').getAttribute('viewBox').split(' ').map(Number)"
SERIES: Mapping[str, Sequence[Any]] = {
    "step": list(range(100, 201)),
    "mfu_ratio": [0.4] * 101,
    "step_time_s": [9.0, *[2.0] * 100],
    "steady": [False, *[True] * 100],
}
FOREIGN = "<script>document.title = 'ran'</script>"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    example_traces.main(folder / "traces")
    page = folder / "report.html"
    assert main(["report", str(folder / "traces"), "--output", str(page)]) == 0
    return page


def ticks(tab: Tab, axis: str) -> list[str]:
    chosen = f"svg[data-axis={axis}] .tick[data-tick]"
    return list(tab.run(f"[...document.querySelectorAll('{chosen}')].map((tick) => tick.textContent)"))


def test_a_drag_shows_a_part_of_the_time_and_the_button_all_of_it(traced: Path, tab: Tab) -> None:
    tab.open(traced.as_uri(), "document.querySelector('.zoom')")
    whole = tab.run(VIEW % "time")
    names = ticks(tab, "time")
    assert tab.run("document.querySelector('.zoom button').hidden")

    tab.drag(f"{LANES} svg", 0.25, 0.5)

    _, _, width, height = tab.run(VIEW % "time")
    assert width == pytest.approx(whole[2] / 4, rel=0.05)
    assert height == whole[3]
    assert ticks(tab, "time") != names
    assert tab.text(".zoom output").startswith("Shown: ")
    assert tab.run("document.getAnimations().length") == 0
    tab.run("document.querySelector('.zoom button').click()")
    assert tab.run(VIEW % "time") == whole
    assert ticks(tab, "time") == names


def test_the_keyboard_zooms_moves_and_shows_all(traced: Path, tab: Tab) -> None:
    tab.look(calm=True)
    tab.open(traced.as_uri(), "document.querySelector('.zoom')")
    whole = tab.run(VIEW % "time")
    tab.run(f"document.querySelector('{LANES}').focus()")
    for key, left, width in (
        ("+", 0.25, 0.5),
        ("ArrowRight", 0.375, 0.5),
        ("+", 0.5, 0.25),
        ("-", 0.375, 0.5),
        ("-", 0.0, 1.0),
        ("-", 0.0, 1.0),
        ("+", 0.25, 0.5),
        ("ArrowLeft", 0.125, 0.5),
        ("Escape", 0.0, 1.0),
    ):
        tab.press(key)
        shown = tab.run(VIEW % "time")
        assert (shown[0] / whole[2], shown[2] / whole[2]) == pytest.approx((left, width)), key


def test_charts_over_steps_zoom_together_and_what_is_not_steady_does_not_flatten_them(
    tab: Tab, tmp_path: Path
) -> None:
    page = tmp_path / "job.html"
    page.write_text(
        to_html(report_of_summary(job_round(7, name="j").summary, "test", SERIES)), encoding="utf-8"
    )
    tab.open(page.as_uri(), "document.querySelectorAll('.zoom').length === 2")
    assert ticks(tab, "steps")[:6] == ["step 100", "step 120", "step 140", "step 160", "step 180", "step 200"]
    # The axis ends above steps of 2 s, not of 9 s.
    assert "2200.0 ms" in tab.run("document.querySelectorAll('svg[data-axis=steps]')[1].textContent")

    tab.drag("svg[data-axis=steps] svg", 0.5, 1.0)

    views = tab.run(
        "[...document.querySelectorAll('svg[data-axis] svg')].map((one) => one.getAttribute('viewBox'))"
    )
    assert len(set(views)) == 1
    assert re.fullmatch(r"Shown: step 1(49|50|51) to step 200\.", tab.text(".zoom output"))


def test_an_aggregator_lets_only_the_script_of_perfd_run(tab: Tab, browser: Browser, traced: Path) -> None:
    class Source:
        def captures(self) -> list[dict[str, Any]]:
            files = [{"path": str(traced), "removed": None}]
            return [{"id": traced.parent.name, "report": None, "ranks": [{"files": files, "node": "n"}]}]

    body = traced.read_text(encoding="utf-8").replace("</main>", f"</main>{FOREIGN}")
    (traced.parent / "perfd.report.html").write_text(body, encoding="utf-8")
    server = HttpServer("127.0.0.1:0", report_routes(Source()))  # type: ignore[arg-type]
    try:
        tab.open(
            f"http://{server.address}/reports/captures/{traced.parent.name}",
            "document.querySelector('.zoom')",
        )
        assert tab.run("document.title") != "ran"
        tab.drag(f"{LANES} svg", 0.25, 0.5)
        assert tab.text(".zoom output").startswith("Shown: ")
    finally:
        server.close()
    # Exactly the foreign script was refused.
    assert [problem for problem in browser.problems if "script" not in problem] == []
    assert len(browser.problems) == 1
    browser.problems.clear()


def test_without_scripts_all_is_drawn_and_nothing_offers_to_zoom(traced: Path, tab: Tab) -> None:
    tab.scripts(allowed=False)
    tab.open(traced.as_uri(), "document.querySelector('svg[data-axis=time]')")
    assert tab.count(".zoom") == 0
    assert tab.count(f"{LANES} svg rect") > 0
    assert ticks(tab, "time")[0] == "0 s"
