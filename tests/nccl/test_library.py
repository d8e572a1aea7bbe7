"""A job is told to load the plugin unless it has one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from perfd_collectors.nccl.plugin_library import LIBRARY, NOT_BUILT, VARIABLE, with_plugin

RUN_WITHOUT_PLUGIN = """
import sys
from pathlib import Path
from perfd_collectors.nccl import plugin_library
plugin_library.LIBRARY = Path("/nowhere")
from perfd.cli import main
sys.exit(main(["run", *sys.argv[1:], "--", "true"]))
"""


def test_a_job_gets_the_plugin_when_it_was_built() -> None:
    environment = with_plugin({"HOME": "/"})

    assert environment.get(VARIABLE) == (str(LIBRARY) if LIBRARY.is_file() else None)
    assert environment["HOME"] == "/"


def test_the_users_own_plugin_stays() -> None:
    assert with_plugin({VARIABLE: "none"}) == {VARIABLE: "none"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("configuration", "own_plugin", "said"),
    [
        ("{}", False, 1),
        ("{}", True, 0),
        ("agent: {collectors: {nccl: {enabled: false}}}", False, 0),
    ],
)
def test_a_run_without_the_plugin_says_why_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configuration: str, own_plugin: bool, said: int
) -> None:
    config = tmp_path / "perfd.yaml"
    config.write_text(configuration)
    monkeypatch.delenv(VARIABLE, raising=False)
    if own_plugin:
        monkeypatch.setenv(VARIABLE, "none")
    options = ["--no-nsys", "--config", config, "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_PLUGIN, *options],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr.count(f"perfd: {NOT_BUILT}\n") == said
