"""Every view passes axe in both themes; themes can be chosen and pages printed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Tab
from tests.support.page_server import VIEWS, StandIn, everything

pytestmark = pytest.mark.system
HERE = Path(__file__).parent
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
THEME = "document.documentElement.dataset.theme"


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which npm checks against the hash in the lock file."""
    if not shutil.which("npm") and not os.environ.get("CI"):
        pytest.skip("npm is not installed (Debian package `npm`)")
    folder = tmp_path_factory.mktemp("axe")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "axe" / name, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def violations(tab: Tab, axe: str) -> list[str]:
    tab.run(f"{axe}; undefined")
    found = (
        "axe.run(document, {runOnly: %s, iframes: false}).then(({violations}) => violations.flatMap((one) =>"
        " one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`)))"
    )
    return [str(one) for one in tab.run(found % RULES)]


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (320, True)], ids=["light", "dark", "narrow"]
)
@pytest.mark.parametrize("view", [*VIEWS, "/compare", "/jobs/llama/ranks/3"])
def test_axe_finds_nothing(view: str, width: int, dark: bool, tab: Tab, stand_in: StandIn, axe: str) -> None:
    everything(stand_in)
    tab.look(width, dark=dark, calm=True)
    tab.open(stand_in.url + view, "document.querySelector('main h1')")
    assert violations(tab, axe) == []


def test_axe_finds_what_is_wrong(tab: Tab, stand_in: StandIn, axe: str) -> None:
    # The other tests rely on it.
    tab.open(f"{stand_in.url}/", "document.querySelector('#empty')")
    tab.run("void document.querySelector('main').append(document.createElement('button'))")
    assert any(one.startswith("button-name: ") for one in violations(tab, axe))


def test_a_theme_is_chosen_once_for_all_pages_of_this_browser(browser: Browser, stand_in: StandIn) -> None:
    tab = browser.tab()
    tab.look(dark=False)
    tab.open(f"{stand_in.url}/", "document.querySelector('#empty')")
    assert tab.run(THEME) == "light"
    light = tab.run("getComputedStyle(document.body).backgroundColor")
    choose = (
        "(() => { const select = document.getElementById('theme'); select.value = '%s';"
        " select.dispatchEvent(new Event('change')); })()"
    )
    tab.run(choose % "dark")
    assert tab.run(THEME) == "dark"
    assert tab.run("getComputedStyle(document.body).backgroundColor") != light
    tab.open(f"{stand_in.url}/agents", "document.querySelector('#empty')")
    assert tab.run(THEME) == "dark"
    assert tab.run("document.getElementById('theme').value") == "dark"

    # Auto follows the system again, also while the page is open.
    tab.run(choose % "")
    assert tab.run(THEME) == "light"
    tab.look(dark=True)
    tab.wait(f"{THEME} === 'dark'")
    tab.close()


def test_on_paper_the_dark_theme_is_light_and_nothing_can_be_clicked(tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    tab.look(dark=True)
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#headline')")
    dark = tab.run("getComputedStyle(document.querySelector('.verdict')).backgroundColor")
    tab.print_look()
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.run("getComputedStyle(document.querySelector('.verdict')).backgroundColor") != dark
    assert tab.run("[...document.querySelectorAll('.actions button')].every((one) => !one.offsetParent)")
    assert tab.text("#headline")


@pytest.mark.parametrize("view", [*VIEWS, "/compare", "/jobs/llama/ranks/3"])
def test_nothing_is_wider_than_the_paper(view: str, tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    tab.paper()
    tab.open(stand_in.url + view, "document.querySelector('main h1')")
    assert tab.cut_off() == []
