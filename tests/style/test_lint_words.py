"""The words of words.yaml are refused where people read them, and nowhere else."""

from __future__ import annotations

import re

import pytest

from tests.style.lint_words import AllowedText, WordList, WordRule, load_words, refused_names, refused_words

REPORTED = WordList(rules=[WordRule(re.compile(r"\btold\b"), "reported")])


def lines(path: str, content: str, words: WordList = REPORTED) -> list[int]:
    return [found.line for found in refused_words(path, content, words)]


@pytest.mark.parametrize(
    "text",
    [
        "No step was told.", "the job heals and mends itself", "A file says so.", "Nobody waits.",
        "as far as\nknown",
        "a process of its own", "This is no terminal.", "Reports lie in a folder.", "12.0 TFLOP/s a GPU",
        "28.0 %",
        "36.2 us", "a synchronisation", "analysed", "grey", "its colour", "TTFT P50", "one row a metric",
        "Who does not wait presses Ctrl-C.", "neighbouring ranks", "a cancelled job", "it wins at most 28.0%",
    ],
)  # fmt: skip
def test_marks_of_translation_and_british_spelling_are_refused(text: str) -> None:
    assert refused_words("docs/page.md", text, load_words())


@pytest.mark.parametrize(
    "text",
    [
        "No step was reported.", "There is no terminal.", "once a second", "28.0%", "36.2 µs", "5 % 3",
        "canceled",
        "synchronization", "analyzes", "precise, otherwise, exercise, raise, promise",
        "tokens per second", "us",
        "rank 2, which waits", "the analysis", "It is no longer open.", "hourly", "4 hours",
    ],
)  # fmt: skip
def test_plain_american_english_is_fine(text: str) -> None:
    assert refused_words("docs/page.md", text, load_words()) == []


def test_of_python_strings_docstrings_and_comments_are_read_but_no_names_and_keys() -> None:
    content = (
        '"""It is told\nand told."""\nr["told"] = told  # told\nx = f"is {told} told"\ny = "`told` key"\n'
    )

    assert lines("perfd/a.py", content) == [1, 2, 3, 4]


def test_code_in_documentation_is_not_read() -> None:
    content = "`told` and\n```text\ntold\n```\n[link](told.md)\n\ntold\n"

    assert lines("docs/a.md", content) == [7]


def test_of_the_changelog_only_what_is_unreleased_is_read() -> None:
    content = "# Changelog\ntold\n## [Unreleased]\n- told\n## [1.0.0]\n- told\n"

    assert lines("CHANGELOG.md", content) == [4]


def test_an_exception_is_for_one_text_in_one_file() -> None:
    words = WordList(rules=REPORTED.rules, allowed=[AllowedText("docs/a.md", re.compile("NCCL told"))])

    assert lines("docs/a.md", "NCCL told us.", words) == []
    assert lines("docs/a.md", "We told NCCL.", words) == [1]
    assert lines("docs/b.md", "NCCL told us.", words) == [1]


@pytest.mark.parametrize(
    "content",
    [
        "told = 1", "def tell(): ...", "class Heard: ...", "def f(*, untold): ...", "self.heard_s = 1",
        "def test_a_rank_is_told(): ...", "_LEASH = 1", "for speaks in x: ...",
    ],
)  # fmt: skip
def test_names_with_refused_words_are_refused_where_they_are_defined(content: str) -> None:
    assert refused_names("tests/test_a.py", content, load_words())


def test_names_of_others_and_words_inside_of_words_are_fine() -> None:
    content = "position = file.tell()\nbookteller = shear = amended = 1\nimport told\n"

    assert refused_names("perfd/a.py", content, load_words()) == []
