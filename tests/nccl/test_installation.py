"""Installed where there is no compiler, perfd works and says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# pip fetches what builds the package.
pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_without_a_compiler_the_installation_succeeds_and_the_doctor_says_what_is_missing(
    tmp_path: Path,
) -> None:
    installed, no_tools = tmp_path / "installed", tmp_path / "bin"
    no_tools.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "CC"}
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", installed, ROOT],
        env={**environment, "PATH": str(no_tools)},
        check=True,
    )

    assert list(installed.rglob("*.so")) == []
    doctor = subprocess.run(
        [sys.executable, "-P", "-m", "perfd", "doctor", "--json"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = {finding["check"]: finding for finding in json.loads(doctor.stdout)["findings"]}
    plugin = findings["nccl_plugin"]
    assert plugin["level"] == "warn"
    assert "libnccl-profiler-perfd.so not found" in plugin["what"]
    assert "C compiler" in plugin["fix"]
