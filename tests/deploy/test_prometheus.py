"""promtool and amtool on what an operator copies from deploy/prometheus."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from perfd.cli import main

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not all(map(shutil.which, ("promtool", "amtool"))) and not os.environ.get("CI"),
        reason="needs the Debian packages `prometheus` and `prometheus-alertmanager`",
    ),
]
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
FLEET_TEST = Path(__file__).parent / "prometheus" / "fleet.yaml"


def run(*command: str | Path, cwd: Path) -> str:
    """What a program prints; it has to succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_configuration_with_the_rules_that_ship(tmp_path: Path) -> None:
    for name in ("prometheus.yaml", "fleet.yaml"):
        shutil.copy(DEPLOY / name, tmp_path)
    shutil.copytree(ROOT / "rules", tmp_path / "rules")
    shutil.copytree(DEPLOY / "targets", tmp_path / "targets")
    count = len(list((ROOT / "rules").glob("*.yaml"))) + 1
    assert f"{count} rule files found" in run("promtool", "check", "config", "prometheus.yaml", cwd=tmp_path)


def test_amtool_accepts_the_routes_to_people_and_to_perfd() -> None:
    path = DEPLOY / "alertmanager.yaml"
    run("amtool", "check-config", path, cwd=DEPLOY)
    routes = {
        labels: run(
            "amtool", "config", "routes", "test", f"--config.file={path}", *labels.split(), cwd=DEPLOY
        )
        for labels in ("alertname=PerfdStraggler capture=default", "alertname=PerfdDataLoading")
    }
    assert [found.strip() for found in routes.values()] == ["perfd,people", "people"]


def test_recording_rules_record_what_their_test_says_in_both_engines() -> None:
    run("promtool", "test", "rules", FLEET_TEST, cwd=ROOT)
    assert main(["rules", "test", str(FLEET_TEST)]) == 0
