"""The list of attacks in the threat model names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)
ATTACKS = ROW.findall((ROOT / "docs/threat-model.md").read_text(encoding="utf-8").partition("## Attacks")[2])


def test_there_are_at_least_as_many_as_were_found():
    assert len(set(ATTACKS)) >= 26


@pytest.mark.parametrize(("file", "name"), ATTACKS)
def test_an_attack_has_its_test(file, name):
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
