"""README leads to every page, and shows what the demo prints; docs/cli.md has every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfd.cli import VERBS, main
from perfd.cli.commands import demo

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != "index.md" and not page.startswith("adr/")]
)
def test_readme_leads_to_every_page(page: str) -> None:
    assert f"(docs/{page})" in README


@pytest.mark.parametrize("page", PAGES)
def test_the_site_has_every_page(page: str) -> None:
    assert page in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_table_of_commands_has_every_verb(verb: str) -> None:
    assert f"| [`perfd {verb}" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_readme_shows_what_the_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:.*\n\t@\S+/perfd demo$", makefile, re.MULTILINE)
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)

    assert main(["replay", demo.RECORDING, "--speed", "max"]) == 0

    printed = capsys.readouterr().out.splitlines()
    places = [printed.index(line) for line in shown.splitlines() if line != "..."]
    assert places == sorted(places)
    assert "refused" not in "".join(printed)
