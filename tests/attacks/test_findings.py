"""The list of attacks in the threat model names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8").partition("## Attacks")[2]
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)
ATTACKS = ROW.findall(LIST)
NAMED_BY_THE_REVIEW = {
    "identity": ["an agent's id", "certificate of node b", "sequence 2^62", "one disk image"],
    "authorization": [
        "another layout",
        "any node ends",
        "moves a capture",
        "`/etc/passwd`",
        "256 job slots",
    ],
    "bulkheads": [
        "`memory_bytes=0`",
        "one large batch",
        "events take 3.2 GB",
        "members of communicators",
        "flipped bit blocks",
    ],
    "storage": ["unreadable row", "full disk", "40 days", "two aggregators", "lost by a kill"],
    "node": [
        "swapped for a link",
        "log that links",
        "`RANK=25519`",
        "forged dumps",
        "forged segments",
        "64 MiB of JSON",
        "2^32 rings",
        "systemd unit",
    ],
    "HTTP": [
        "DNS rebinding",
        "smuggling",
        "256 idle connections",
        "a stream without Hello",
        "renewed certificate",
    ],
    "parsers": ["60 kB of spaces", "5,000 digits", "mutated logs"],
}
"""The findings of the first review, by words of their rows."""


def test_each_row_of_the_list_names_a_test():
    assert len(ATTACKS) == sum(line.startswith("| ") for line in LIST.splitlines()) - 1


@pytest.mark.parametrize("words", [words for group in NAMED_BY_THE_REVIEW.values() for words in group])
def test_what_the_review_found_is_in_the_list_once(words):
    assert sum(words in line for line in LIST.splitlines()) == 1


@pytest.mark.parametrize(("file", "name"), ATTACKS)
def test_an_attack_has_its_test(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1
    assert "skip(" not in ast.unparse(found[0])
