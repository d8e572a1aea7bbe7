"""The module that keeps a process from ending within a window, and whether a process has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfd.capture.node import environment_of

FOLDER = Path(__file__).parent / "perfd_at_exit"
_VARIABLE = "PYTHONPATH"
_MODULE = "sitecustomize.py"


def with_wait_at_exit(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a Python process does not end before the window of its capture."""
    others = environment.get(_VARIABLE)
    return {**environment, _VARIABLE: f"{FOLDER}:{others}" if others else str(FOLDER)}


def waits_at_exit(proc: Path, pid: int) -> bool:
    """Whether a process was started in such an environment, and sees the module."""
    entries = environment_of(proc, pid).get(_VARIABLE, "").split(":")
    root = proc / str(pid) / "root"
    return any(
        Path(entry).name == FOLDER.name and (root / entry.lstrip("/") / _MODULE).is_file()
        for entry in entries
        if entry.startswith("/")
    )
