"""README and the navigation of the site hold every page and every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfd.cli import VERBS

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


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"version"}))
def test_the_table_of_commands_has_every_verb(verb: str) -> None:
    assert f"`perfd {verb}" in README
