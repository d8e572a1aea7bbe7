"""Names of a job and of its results folder, from what is known before it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath

_LAUNCHERS = frozenset({
    "accelerate.commands.launch", "deepspeed.launcher.runner",
    "torch.distributed.launch", "torch.distributed.run",
})  # fmt: skip
"""Modules that start the job's script."""

_LONGEST = 100
"""Characters of the job's name in the folder's name; file systems allow 255 in all."""


def job_name(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The Slurm job's id, otherwise the script that the command runs, otherwise the command."""
    if slurm_id := environment.get("SLURM_JOB_ID", ""):
        return slurm_id
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-m" and following and following[0] != "-" and following not in _LAUNCHERS:
            return following.rpartition(".")[2]
        if word.endswith((".py", ".sh")):
            return PurePath(word).stem
    return PurePath(command[0]).name


def results_folder(parent: Path, job: str, now_unix_ns: int) -> Path:
    """The folder for the results of one run, which does not exist yet: named by job and time (UTC)."""
    time = datetime.fromtimestamp(now_unix_ns // 1_000_000_000, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", job).lstrip(".")[:_LONGEST] or "job"
    name = f"{safe}-{time}"
    candidate = parent / name
    number = 2
    while candidate.exists():
        candidate = parent / f"{name}-{number}"
        number += 1
    return candidate
