"""A confined third-party program, started through a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

from perfd.sandbox.confined_program import confined_command


def test_a_script_may_write_what_nobody_reads_to_dev_null(tmp_path: Path) -> None:
    program, folder = tmp_path / "nsys", tmp_path / "folder"
    folder.mkdir()
    program.write_text(f"#!/bin/sh\necho unread > /dev/null && echo made > {folder}/export\n")
    program.chmod(0o755)
    done = subprocess.run(
        confined_command([str(program)], read=[], write=[folder]), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "export").read_text() == "made\n"
