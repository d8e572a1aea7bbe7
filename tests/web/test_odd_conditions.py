"""In a real browser: a wrong clock, two tabs, ranks that come and go, very long names, and no scripts."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.support.chromium import Browser, Tab
from tests.support.page_server import StandIn, everything, fleet_row, job_entry

pytestmark = pytest.mark.system

CLOCK = """(() => {
  const Real = Date;
  globalThis.Date = class extends Real {
    constructor(...given) { super(...(given.length ? given : [Real.now() + %d])); }
    static now() { return Real.now() + %d; }
  };
})()"""
# 10 kB of each as UTF-8, with no place to break a line.
NAMES = {"latin": "n" * 10_240, "chinese": "漢" * 3_413, "arabic": "ن" * 5_120, "combining": "é" * 3_413}


def test_a_browser_whose_clock_is_off_shows_the_same(browser: Browser, stand_in: StandIn) -> None:
    everything(stand_in)
    shown: dict[int, list[str]] = {}
    for off_s in (0, -3600, 3600):
        tab = browser.tab()
        tab.look()
        tab.before_each_page(CLOCK % (1000 * off_s, 1000 * off_s))
        for path in ("/jobs/llama", "/alerts"):
            tab.open(stand_in.url + path, "document.querySelector('main h1')")
            ahead_s = tab.run("(Date.now() - performance.timeOrigin - performance.now()) / 1000")
            assert abs(ahead_s - off_s) < 1800
            shown.setdefault(off_s, []).append(tab.text("main"))
        tab.close()
    assert all(shown[0])
    assert shown[-3600] == shown[0] == shown[3600]


def test_of_two_tabs_the_one_in_front_is_live_and_the_other_catches_up(
    browser: Browser, tab: Tab, stand_in: StandIn
) -> None:
    other = browser.tab()
    other.look()
    for step in (1, 2):
        stand_in.answers["fleet"] = {**stand_in.answers["fleet"], "jobs": [fleet_row("llama", step=step)]}
        stand_in.live.notify()
        for one in (tab, other):
            one.front()
            if step == 1:
                one.open(f"{stand_in.url}/", "document.querySelector('#jobs')")
            one.wait(f"document.querySelector('#jobs').innerText.includes('{step} of 1000')")
            one.wait("document.getElementById('updated').dataset.how === 'live'")
    # Who is hidden keeps no stream.
    while stand_in.live.viewers > 1:
        assert other.run("document.visibilityState") == "visible"
    other.close()


def test_ranks_that_come_and_go_are_those_of_the_newest_round(tab: Tab, stand_in: StandIn) -> None:
    shown = "document.querySelectorAll('#ranks tbody tr').length"
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", ranks=4)]}
    tab.open(f"{stand_in.url}/jobs/llama", f"{shown} === 4")
    tab.wait("document.getElementById('updated').dataset.how === 'live'")
    for ranks in (8, 2):
        stand_in.answers["jobs"] = {"jobs": [job_entry("llama", ranks=ranks)]}
        stand_in.live.notify()
        tab.wait(f"{shown} === {ranks}")


@pytest.mark.parametrize("script", NAMES)
def test_a_name_of_10_kb_neither_widens_a_page_nor_loses_its_link(
    script: str, tab: Tab, stand_in: StandIn
) -> None:
    name = NAMES[script]
    stand_in.answers["fleet"] = {**stand_in.answers["fleet"], "jobs": [fleet_row(name)]}
    tab.look(390, 844)
    tab.open(f"{stand_in.url}/", "document.querySelector('#jobs')")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    links = tab.run("[...document.querySelectorAll('#jobs a')].map((link) => link.getAttribute('href'))")
    assert any(link.endswith(f"/jobs/{quote(name, safe='')}") for link in links)
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", framework=name, owner=name)]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#mfu')")
    assert tab.run("document.documentElement.scrollWidth") <= 390


def test_without_scripts_the_page_says_what_to_do(tab: Tab, stand_in: StandIn) -> None:
    tab.scripts(allowed=False)
    for path in ("/", "/jobs/llama", "/compare"):
        tab.open(stand_in.url + path, "document.querySelector('noscript')")
        said = tab.text("noscript")
        assert said.startswith("This page needs JavaScript.")
        assert "perfd status" in said
        assert tab.run("document.querySelector('noscript').getBoundingClientRect().height") > 0


def test_a_page_whose_scripts_were_not_all_loaded_says_so(browser: Browser, stand_in: StandIn) -> None:
    tab = browser.tab()
    tab.look()
    tab.block("*/static/format.js")
    tab.open(f"{stand_in.url}/", "document.querySelector('#notices .notice')")
    assert tab.text("#notices").startswith("Parts of this page were not loaded. Reload it;")
    tab.block()
    tab.open(f"{stand_in.url}/agents", "document.querySelector('main h1')")
    tab.close()
