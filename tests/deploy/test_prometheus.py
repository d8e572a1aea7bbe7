"""promtool on what an operator copies."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not shutil.which("promtool") and not os.environ.get("CI"),
        reason="promtool is not installed (Debian package `prometheus`)",
    ),
]
ROOT = Path(__file__).parents[2]


def test_promtool_accepts_the_scrape_configuration_with_the_rules_that_ship(tmp_path: Path) -> None:
    shutil.copy(ROOT / "deploy" / "prometheus" / "prometheus.yaml", tmp_path)
    shutil.copytree(ROOT / "rules", tmp_path / "rules")
    found = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    count = len(list((ROOT / "rules").glob("*.yaml")))
    assert f"{count} rule files found" in found.stdout
