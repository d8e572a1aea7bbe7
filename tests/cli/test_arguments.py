"""Numbers that make no sense are refused where they are written."""

from __future__ import annotations

import pytest

from perfd.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        "serving 127.0.0.1:1 --interval -1",
        "serving 127.0.0.1:1 --interval nan",
        "serving 127.0.0.1:1 --timeout inf",
        "serving 127.0.0.1:1 --tp 0",
        "serving 127.0.0.1:1 --dp -2",
        "top --interval nan",
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
    assert " is no number above 0." in last or " is no whole number from 1." in last
