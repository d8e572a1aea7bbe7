"""`perfd parse`."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from training_log.logs import dump, iteration, timers

from perfd.cli import main

STRANGE = "iteration 30 of 500, loss 5.0\n"
BLOCK = {"forward-backward": (1800.0, 1900.0), "optimizer": (40.0, 41.0)}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    text = dump() + iteration(10) + timers(BLOCK) + iteration(20) + timers(BLOCK) + STRANGE
    path.write_text(text)
    return path


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["parse", "--json", *map(str, arguments)]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_document_has_the_documented_shape(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = parsed(capsys, log)

    assert document["schema"] == "perfd.log/2"
    assert document["framework"] == "megatron-lm"
    assert document["model"]["layers"] == 24
    assert document["parallel"]["dp"] == 4
    assert document["unrecognized_lines"] == 1
    first, second = document["steps"]
    assert {
        key: second[key] for key in ("step", "step_time_s", "flops_per_s_per_gpu", "global_batch_size")
    } == {
        "step": 20,
        "step_time_s": 2.0,
        "flops_per_s_per_gpu": 400.5e12,
        "global_batch_size": 64,
    }
    assert second["tokens_per_s"] == 64 * 2048 / 2.0
    assert second["samples_per_s"] == 32.0
    assert second["losses"] == {"lm loss": 2.5}
    assert second["phases"]["forward-backward"] == {"min_s": 1.8, "max_s": 1.9, "by_rank": None}
    assert (first["warmup"], second["warmup"]) == (True, False)


def test_what_is_unknown_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()

    document = parsed(capsys, empty)

    assert (document["framework"], document["model"], document["steps"]) == (None, None, [])
    assert document["parallel"]["tp"] is None


def test_logs_of_several_ranks_are_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0").write_text(dump())
    (tmp_path / "rank3").write_text(iteration(10))

    document = parsed(capsys, tmp_path / "rank0", tmp_path / "rank3")

    assert document["steps"][0]["tokens_per_s"] == 64 * 2048 / 2.0


def test_standard_input_is_read(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))

    assert [step["step"] for step in parsed(capsys, "-")["steps"]] == [10, 20]


def test_people_get_a_table(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parse", str(log)]) == 0

    shown = capsys.readouterr().out
    for text in (
        "megatron-lm",
        "24 layers",
        "DP 4",
        "2 progress lines",
        "forward-backward",
        STRANGE.strip(),
    ):
        assert text in shown


def test_a_log_without_any_known_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.log").write_text("hello\n")

    assert main(["parse", str(tmp_path / "other.log")]) == 0
    assert "perfd.hook" in capsys.readouterr().out


def test_a_missing_file_a_directory_and_a_binary_file_are_named_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4 + b"\0" * 1000)
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"text\n"))

    for name, reason in {
        "missing": "does not exist",
        ".": "is a directory",
        "binary": "is not text",
        "log.gz": "is compressed",
    }.items():
        assert main(["parse", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1


def test_an_unknown_format_is_refused(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parse", "--framework", "jax", str(log)]) == 2
    assert "'jax'" in capsys.readouterr().err


def test_help_names_the_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parse", "--help"])

    assert "perfd.log/2" in capsys.readouterr().out


def test_an_empty_log_is_distinguished_from_one_that_is_not_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.touch()
    assert main(["parse", str(path)]) == 0
    assert capsys.readouterr().out == "The log is empty, or has no complete line yet.\n"
    path.write_text("hello\n")
    assert main(["parse", str(path)]) == 0
    assert "No known training log format" in capsys.readouterr().out
