"""The reference of commands and the shells' completions, as a user meets them."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

from perfd.cli import VERBS

ROOT = Path(__file__).parents[2]
MADE = runpy.run_path(str(ROOT / "deploy/reference/make_cli_reference.py"))
COMPLETIONS, completions, page = (MADE[name] for name in ("COMPLETIONS", "completions", "page"))
BASH = """
source "$1"
COMP_WORDS=(perfd "${@:2}"); COMP_CWORD=$(($# - 1))
_shtab_perfd perfd "${COMP_WORDS[COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(*words: str, cwd: Path | None = None) -> set[str]:
    """What bash offers for the last of `words`."""
    command = ["bash", "-c", BASH, "bash", str(COMPLETIONS["bash"]), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("re",), {"replay", "record", "report"}),
        (("capture", "st"), {"start"}),
        (("replay", "--sp"), {"--speed"}),
        (("rules", "che"), {"check"}),
    ],
)
def test_bash_completes_verbs_actions_and_options(words: tuple[str, ...], offered: set[str]) -> None:
    assert complete(*words) == offered


def test_bash_completes_files_where_a_file_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "capture-0.sqlite").touch()

    assert complete("analyze", "cap", cwd=tmp_path) == {"capture-0.sqlite"}


def test_every_verb_is_on_the_page_and_in_the_completions() -> None:
    text, scripts = page(), completions()

    for verb in VERBS:
        assert f"## `perfd {verb}" in text
        assert all(f"{verb}" in script for script in scripts.values())
