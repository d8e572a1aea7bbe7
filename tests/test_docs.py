"""What the documentation shows works: its code runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import pytest

from perfd.analysis.findings import Kind
from perfd.analysis.serving.tuning_advice import SERVING_KINDS
from perfd.analysis.steps.steady_steps import ExclusionReason
from perfd.cli import VERBS
from perfd.trace.roofline.roofline_model import RooflineVerdict

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
TRACE_KINDS = (
    Kind.COMPUTE_BOUND, Kind.COMMUNICATION, Kind.LAUNCH_BOUND, Kind.HOST_BOUND, Kind.SYNCHRONIZATION,
    Kind.HOST_TRANSFER, Kind.STRAGGLER, Kind.PIPELINE_BUBBLE, Kind.PIPELINE_IMBALANCE, Kind.MISSING_TELEMETRY,
)  # fmt: skip
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
COMMAND = re.compile(r"(?:^\s{4}|`)perfd ([a-z][a-z-]*)", re.MULTILINE)


def test_the_collector_of_the_tutorial_keeps_the_contract(tmp_path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "my_collector"}
    for block in CODE.findall((ROOT / "docs" / "writing-a-collector.md").read_text()):
        exec(compile(block, "docs/writing-a-collector.md", "exec"), namespace)

    namespace["test_the_folder_is_measured"](tmp_path)  # type: ignore[operator]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_shown_exist(page: Path) -> None:
    assert set(COMMAND.findall(page.read_text())) - set(VERBS) == set()


def test_the_map_of_the_architecture_has_every_module_and_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("| folder |") : text.index("`import-linter`")]
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "perfd").iterdir()
        if path.name[0] not in "._" and (path.suffix == ".py" or path.is_dir())
    }

    assert {name for name in there if f"{name}`" not in table} == set()


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("analysis-verdict.md", set(Kind) - set(SERVING_KINDS)),
        ("analysis-steps.md", ExclusionReason),
        ("serving.md", SERVING_KINDS),
        ("traces.md", TRACE_KINDS),
        ("traces.md", RooflineVerdict),
    ],
)
def test_every_verdict_says_in_its_page_when_it_is_given(page: str, words: Iterable[StrEnum]) -> None:
    rows = [row for row in (ROOT / "docs" / page).read_text().splitlines() if row.startswith("| `")]

    assert {word.value for word in words if not any(f"`{word.value}`" in row for row in rows)} == set()


def walks() -> dict[str, tuple[int, list[str]]]:
    """The walks of the architecture by name: the number of files in the headline, and the files."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    text = text[text.index("## Four values") : text.index("\n## ", text.index("## Four values") + 1)]
    found = {}
    for part in re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)[1:]:
        name, count = re.match(r"\*\*([^*]+)\*\*.*?(\d+) files", part, re.DOTALL).groups()  # type: ignore[union-attr]
        cells = [row.split("|")[1] for row in part.splitlines() if row.startswith("| ")] or [part]
        files = [path for cell in cells for path in re.findall(r"`([\w/]+\.py)`", cell)]
        found[name] = int(count), files
    return found


def test_every_answer_to_where_something_is_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("## Where is ...?")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 30
    for row in rows:
        paths = re.findall(r"`([^`]+)`", row)
        assert paths, row
        for path in paths:
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", walks())
def test_a_walk_of_the_architecture_counts_files_that_exist(name: str) -> None:
    known = walks()
    count, files = known[name]
    there = [str(path) for path in ROOT.glob("perfd/**/*.py")]
    there += [str(path) for path in (ROOT / "collectors").glob("perfd_collectors/**/*.py")]

    assert [file for file in files if not any(path.endswith(f"/{file}") for path in there)] == []
    through = len(known["Transport"][1]) if name not in {"Transport", "An alert to a report"} else 0
    assert len(files) + through == count
