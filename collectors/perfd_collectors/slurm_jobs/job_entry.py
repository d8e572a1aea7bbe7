"""What the Prolog writes about a job that SLURM starts on this node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_FROM_PROCESSES = ("SLURM_JOB_NAME", "SLURM_JOB_ACCOUNT")
"""What slurmd does not pass to the Prolog."""
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """One start of a job on this node."""

    number: str
    """SLURM_JOB_ID of its processes."""
    uid: int
    environ: Mapping[str, str]
    """Variables of SLURM, from the Prolog."""
    log: str = "stdout"
    """As `PERFD_LOG` in slurm.sh: `stdout`, `none`, or a file."""

    @property
    def name(self) -> str:
        """What the job is called: its number, or array and index of an array's task."""
        array, task = (self.environ.get(name, "") for name in _ARRAY)
        return f"{array}_{task}" if array and task else self.number

    def completed_by(self, environ: Mapping[str, str]) -> JobEntry:
        """The entry with what only the environment of the job's processes has; the Prolog's values win."""
        found = {name: environ[name] for name in _FROM_PROCESSES if name in environ}
        # A user can set them to anything, and they make the job's name.
        if all(_NUMBER.fullmatch(environ.get(name, "")) for name in _ARRAY):
            found |= {name: environ[name] for name in _ARRAY}
        return replace(self, environ={**found, **self.environ})


def parse_entry(text: str) -> JobEntry | None:
    """The job of lines `NAME=VALUE`; None without the job's number and user."""
    lines = (line.partition("=") for line in text.splitlines())
    environ = {name: value for name, equals, value in lines if equals and _VARIABLE.fullmatch(name)}
    # Processes of all parts of a heterogeneous job have the number of the first.
    number = environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID", "")
    uid = environ.get("SLURM_JOB_UID", "")
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(uid)):
        return None
    return JobEntry(number=number, uid=int(uid), environ=environ, log=environ.get("PERFD_LOG", "none"))
