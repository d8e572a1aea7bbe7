"""Where the plugin's library is, and the environment that makes NCCL load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LIBRARY = Path(__file__).with_name("libnccl-profiler-perfd.so")
VARIABLE = "NCCL_PROFILER_PLUGIN"
DIRECTORY_VARIABLE = "PERFD_NCCL_DIR"
"""The directory of the plugin's segments, read by the plugin and by `perfd run`."""
NOT_BUILT = (
    "NCCL plugin not built (no working C compiler when perfd was installed): communication comes from"
    " the log's timers alone. Install gcc, then reinstall perfd."
)


def plugin_missing(environment: Mapping[str, str]) -> bool:
    """Whether a job runs without a plugin because none was built; not when the user has named one."""
    return VARIABLE not in environment and not LIBRARY.is_file()


def with_plugin(environment: Mapping[str, str]) -> dict[str, str]:
    """A job's environment with the plugin, unchanged if the user set a plugin or perfd's was not built.

    NCCL reads the variable before its first communicator, and takes one plugin per process.
    """
    if VARIABLE in environment or not LIBRARY.is_file():
        return dict(environment)
    return {**environment, VARIABLE: str(LIBRARY)}
