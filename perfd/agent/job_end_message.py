"""How a job ended, from a file written by the script that ends the agent."""

from __future__ import annotations

from pathlib import Path

from perfd.model import Event, job_end

_MOST_BYTES = 4096
"""The file has one short line; more is none that an Epilog wrote."""


def read_job_end(path: Path, job: str | None, now_unix_ns: int) -> Event | None:
    """The job's end from the file; None if there is no such file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return None
    return job_end(content.decode("utf-8", "replace"), job, now_unix_ns)
