import json
from pathlib import Path

import pytest

from perfd.cli import main
from perfd.rules import builtin_rules

HERE = Path(__file__).parent
BAD = HERE / "bad" / "expr_folded.bad.yaml"


def test_checking_nothing_checks_the_rules_that_ship(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check"]) == 0
    out = capsys.readouterr().out
    assert out.count("SUCCESS") == len(builtin_rules())
    assert "training.yaml" in out


def test_mistakes_give_exit_code_1_and_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check", str(BAD), str(HERE.parents[1] / "rules" / "telemetry.yaml")]) == 1
    captured = capsys.readouterr()
    assert f"{BAD}:8:13: expression: the function histogram_quantile is not supported" in captured.err
    assert captured.out.count("SUCCESS") == 1


def test_a_check_as_json_has_a_documented_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check", "--json", str(BAD)]) == 1
    message = "expression: the function histogram_quantile is not supported"
    assert json.loads(capsys.readouterr().out) == {
        "schema": "perfd.rules.check/1",
        "ok": False,
        "files": [
            {"path": str(BAD), "rules": 0, "mistakes": [{"line": 8, "column": 13, "message": message}]}
        ],
    }


def test_tests_that_hold_give_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "test", *map(str, sorted(HERE.glob("*.yaml")))]) == 0
    assert capsys.readouterr().out.count("SUCCESS") == len(builtin_rules())


def test_a_test_that_fails_gives_exit_code_1_and_what_was_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tests.yaml"
    path.write_text("tests: [{promql_expr_test: [{expr: 1 + 1, exp_samples: [{labels: '{}', value: 3}]}]}]")
    assert main(["rules", "test", str(path)]) == 1
    assert "exp:[\n            {} 3]\n        got:[\n            {} 2]" in capsys.readouterr().err
    assert main(["rules", "test", "--json", str(path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.rules.test/1"
    assert document["files"][0]["failures"] == [
        {"test": "", "about": "expr: '1 + 1', time: 0s", "expected": ["{} 3"], "got": ["{} 2"]}
    ]


def test_a_test_of_wrong_rules_tells_their_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tests.yaml"
    path.write_text(f"rule_files: ['{BAD}']\ntests: []\n")
    assert main(["rules", "test", str(path)]) == 1
    assert f"{BAD}:8:13: expression:" in capsys.readouterr().err
