"""What the command refuses where it is written, and what it says when it is asked for nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfd.cli import VERBS, main


@pytest.mark.parametrize(
    "arguments",
    [
        "serving 127.0.0.1:1 --interval -1",
        "serving 127.0.0.1:1 --interval nan",
        "serving 127.0.0.1:1 --timeout inf",
        "serving 127.0.0.1:1 --tp 0",
        "serving 127.0.0.1:1 --dp -2",
        "top --interval nan",
        "replay dp4 --skip abc",
        "replay dp4 --skip nan",
        "roofline --matmul 8x8x8 --time soon",
        "roofline --matmul 8x8x8 --time nan",
        "capture plan --ncu --skip -1",
        "capture --slurm 1 --step x",
        "capture --slurm 1 --duration 0",
        "record --out x --duration 0",
        "compare a b --model-flops-per-step -1",
        "analyze a --gpus 1.5",
        "capture start --steps 0",
        "capture start --duration x",
    ],
)
def test_a_number_that_makes_no_sense_is_one_sentence(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments.split())
    assert left.value.code == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert re.search(r" must be (a number above 0|0 or greater|a whole number, [01] or greater)\.$", last)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("rn -- true", "unknown verb: rn; did you mean run?"),
        ("agregator", "unknown verb: agregator; did you mean aggregator?"),
        ("xyzzy", "unknown verb: xyzzy; `perfd --help` lists the verbs."),
        ("run --htp 127.0.0.1:1 -- true", "unrecognized arguments: --htp; did you mean --http?"),
        ("status --jsn=1", "unrecognized arguments: --jsn=1; did you mean --json?"),
        ("run --bogus -- true", "unrecognized arguments: --bogus"),
        ("status --xyzzy", "unrecognized arguments: --xyzzy"),
        ("capture strat llama", "did you mean start?"),
        ("rules chek x.yaml", "did you mean check?"),
        ("run --precision bf15 -- true", "did you mean bf16?"),
        ("replay dp4_slo", "did you mean dp4_slow2?"),
    ],
)
def test_a_misspelled_word_gets_a_suggestion(
    arguments: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments.split())
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert capsys.readouterr().err.endswith(f"{hint}\n")


def test_without_a_verb_all_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().err
    assert [verb for verb in VERBS if f"    {verb}" not in listed] == []


def test_the_version_is_shown_where_people_look_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert main(["version"]) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "verb"), [("parse --frobnicate x", "parse"), ("rules check --frobnicate", "rules check")]
)
def test_an_option_that_a_verb_does_not_have_shows_those_that_it_has(
    arguments: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments.split())
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: perfd {verb} [-h] ")
    assert said.endswith(f"perfd {verb}: error: unrecognized arguments: --frobnicate\n")


def test_an_empty_operation_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", "--hlo="]) == 2
    assert "Not a line of HLO" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["doctor --json", "roofline --matmul 8x8x8 --json"])
def test_every_key_of_what_is_printed_as_json_stands_in_the_help(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments.split())
    printed = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main([arguments.split(maxsplit=1)[0], "--help"])
    described = capsys.readouterr().out
    assert {key for key in keys_of(printed) if f'"{key}"' not in described} == set()


def keys_of(document: object) -> Iterator[str]:
    if isinstance(document, dict):
        yield from document
        for value in document.values():
            yield from keys_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from keys_of(value)


@pytest.mark.parametrize("verb", ["diagnose", "report"])
def test_the_folder_above_runs_is_answered_with_their_newest(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a-1", "a-2")):
        summary = tmp_path / name / "summary.json"
        summary.parent.mkdir()
        summary.write_text("{}")
        os.utime(summary, (number, number))
    assert main([verb, str(tmp_path)]) == 2
    assert f"several runs: name one, such as {tmp_path}/a-2, the newest." in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["diagnose", "report", "open", "replay", "analyze", "parse"])
def test_a_path_that_does_not_exist_is_called_so(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "/no/such/path"]) == 2
    assert "/no/such/path does not exist: " in capsys.readouterr().err


@pytest.mark.parametrize("file", ["/dev/zero", "/proc/self/mem", "."])
def test_a_model_config_that_is_no_file_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "examples" / "serving-70b.prom"
    assert main(["serving", str(page), "--model-config", file]) == 2
    assert "a model's config.json" in capsys.readouterr().err
