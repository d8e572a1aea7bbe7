import json
import subprocess
import sys
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
            {
                "path": str(BAD),
                "rules": 0,
                "mistakes": [{"line": 8, "column": 13, "message": message}],
                "warnings": [],
            }
        ],
    }


def test_a_misspelt_metric_of_perfd_is_a_warning_that_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "groups: [{name: g, rules: [{alert: Slow, expr: perfd_step_tim_seconds > perfd_step_time_seconds}]}]"
    )
    warning = (
        "Slow reads perfd_step_tim_seconds, which is neither exported nor recorded;"
        " did you mean perfd_step_time_seconds?"
    )
    assert main(["rules", "check", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"  WARNING: {warning}\n"
    assert "SUCCESS: 1 rules found" in captured.out
    assert main(["rules", "check", "--json", str(path)]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["warnings"] == [warning]


def test_what_rules_record_and_what_others_export_is_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("groups: [{name: g, rules: [{record: 'perfd:mine', expr: perfd_gpu_power_watts}]}]")
    second.write_text(
        "groups: [{name: g, rules: [{alert: A, expr: 'perfd:mine > 1 or perfd:mfu_tier'},"
        " {alert: B, expr: 'node_load1 > on() {__name__=~\"perfd_x.*\"}'}]}]"
    )
    assert main(["rules", "check", str(first), str(second)]) == 0
    assert capsys.readouterr().err == ""


PROFILES = (
    "groups: [{name: g, rules: ["
    "{alert: A, expr: up == 0, labels: {capture: nosuch}},"
    "{alert: B, expr: up == 0, labels: {capture: nosuch}},"
    "{alert: C, expr: up == 0, labels: {capture: flight_recorder+hang}},"
    "{alert: B, expr: up == 1, labels: {capture: nosuch, severity: page}},"
    "{record: 'job:up', expr: up, labels: {capture: nosuch}},"
    "{alert: D, expr: up == 0, labels: {capture: '{{ $labels.profile }}'}}]}]"
)


def test_a_capture_profile_that_does_not_ship_is_a_warning_that_asks_for_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PROFILES)
    assert main(["rules", "check", str(path)]) == 0
    assert capsys.readouterr().err == (
        "  WARNING: A and B cannot start a capture: no capture profile 'nosuch';"
        " capture_profiles has: default, flight_recorder, hang, serving."
        " If a configuration has others, name it: --config FILE.\n"
    )


@pytest.mark.parametrize("prefix", ["", "aggregator:\n  "], ids=["of-the-aggregator", "of-a-run"])
def test_the_capture_profiles_of_a_configuration_are_those_that_rules_may_name(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = tmp_path / "mine.yaml", tmp_path / "config.yaml"
    path.write_text(PROFILES)
    config.write_text(f"{prefix}capture_profiles: {{nosuch: {{steps: 3}}}}")
    assert main(["rules", "check", "--json", "--config", str(config), str(path)]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["warnings"] == [
        f"C cannot start a capture: no capture profile '{name}'; capture_profiles has: nosuch."
        for name in ("flight_recorder", "hang")
    ]


def test_the_rules_that_ship_name_profiles_that_ship(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check"]) == 0
    assert capsys.readouterr().err == ""


def test_a_run_says_at_its_start_that_a_rule_names_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PROFILES)
    # Not in this process: it forks, and tests before this one may have left threads of gRPC.
    verb = [sys.executable, "-m", "perfd", "run", "--no-nsys", "--rules", path, "--out", tmp_path / "out"]
    done = subprocess.run(
        [*verb, "--", tmp_path / "no-such-command"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "perfd: A and B cannot start a capture: no capture profile 'nosuch'" in done.stderr


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


def test_a_test_of_wrong_rules_shows_their_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tests.yaml"
    path.write_text(f"rule_files: ['{BAD}']\ntests: []\n")
    assert main(["rules", "test", str(path)]) == 1
    assert f"{BAD}:8:13: expression:" in capsys.readouterr().err
