"""Each file in `bad` has one mistake; its first lines say what must be reported, and where."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.errors import RulesError
from perfd.rules.files.rules_loader import load_rules, parse_rules, read_rules
from perfd.rules.files.rules_source import RulesSource

BAD = sorted((Path(__file__).parent / "bad").glob("*.bad.yaml"))


def expected(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("# ")]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name.removesuffix(".bad.yaml"))
def test_the_mistake_is_reported_with_line_and_column(path: Path) -> None:
    found = [str(mistake).removeprefix(f"{path}:") for mistake in read_rules(path).mistakes]
    assert found == expected(path)
    assert found


def test_all_mistakes_of_all_files_are_reported_at_once() -> None:
    with pytest.raises(RulesError) as caught:
        load_rules(BAD)
    lines = str(caught.value).splitlines()
    assert lines == [f"{path}:{line}" for path in BAD for line in expected(path)]


def test_a_file_that_is_not_there_is_a_mistake_of_its_own(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(RulesError, match=r"missing\.yaml:1:1: this file does not exist: check the path"):
        load_rules([missing])


def test_a_link_to_itself_is_a_mistake(tmp_path: Path) -> None:
    loop = tmp_path / "rules.yaml"
    loop.symlink_to(loop)
    with pytest.raises(RulesError, match=r"rules\.yaml:1:1: .*"):
        load_rules([loop])


def test_a_file_of_other_bytes_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(b"\xff\xfe\x00groups")
    with pytest.raises(RulesError, match="it is not UTF-8 text"):
        load_rules([path])


def test_a_column_inside_a_plain_expression_of_two_lines_is_that_of_the_file() -> None:
    text = "groups:\n- name: g\n  rules:\n  - record: a\n    expr: sum(up)\n      + foo(up)\n"
    (mistake,) = parse_rules(RulesSource("f", text)).mistakes
    assert (mistake.line, mistake.column) == (6, 9)


def test_a_column_inside_an_expression_with_escapes_falls_back_to_its_beginning() -> None:
    text = 'groups:\n- name: g\n  rules:\n  - record: a\n    expr: "up{a=\\"b\\"} + foo(up)"\n'
    (mistake,) = parse_rules(RulesSource("f", text)).mistakes
    assert (mistake.line, mistake.column) == (5, 11)


def test_an_empty_file_has_no_rules_and_no_mistakes() -> None:
    file = parse_rules(RulesSource("f", ""))
    assert (file.rules, file.mistakes) == (0, ())


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    parse_rules(RulesSource("f", text))


GOOD = """groups:
  - name: g
    interval: 30s
    rules:
      - record: job:up:sum
        expr: sum by (job) (up{job=~"a|b"})
      - alert: Down
        expr: job:up:sum < 1
        for: 5m
        labels: {severity: critical}
        annotations: {summary: "{{ $labels.job }} is down"}
"""


@settings(deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 12), st.text(alphabet=" {}[]():\"'|>-\n@$ax1", max_size=4))
def test_a_damaged_file_is_read_or_refused_with_places_inside_it(at: int, cut: int, new: str) -> None:
    text = GOOD[:at] + new + GOOD[at + cut :]
    lines = text.splitlines() or [""]
    for mistake in parse_rules(RulesSource("f", text)).mistakes:
        assert 1 <= mistake.line <= len(lines) + 1
        assert mistake.column >= 1
