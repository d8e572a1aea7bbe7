"""Where the plugin is, and how a job is told to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LIBRARY = Path(__file__).with_name("libnccl-profiler-perfd.so")
VARIABLE = "NCCL_PROFILER_PLUGIN"
DIRECTORY_VARIABLE = "PERFD_NCCL_DIR"
"""Where the plugin puts its rings, for the job and for who starts it."""


def with_plugin(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job with the plugin in it, unless the user has one or it was not built.

    NCCL reads the variable before its first communicator, and takes one plugin per process.
    """
    if VARIABLE in environment or not LIBRARY.is_file():
        return dict(environment)
    return {**environment, VARIABLE: str(LIBRARY)}
