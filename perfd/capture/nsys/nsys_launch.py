"""Starts a job so that nsys can capture it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.capture.nsys.nsys_cli import session_name
from perfd.capture.nsys.nsys_installation import Installation
from perfd.config import AgentCaptureConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command, and a sentence about captures for the user."""

    command: Sequence[str]
    session: str | None
    """The nsys session that the command opens; None without nsys."""
    note: str = ""


def plan_launch(
    command: Sequence[str],
    *,
    job: str,
    unique: str,
    config: AgentCaptureConfig,
    installation: Installation | None,
) -> Launch:
    """The job's command, under `nsys launch` if possible and allowed.

    `unique` distinguishes runs of a job on one node (such as a pid); nsys refuses an existing session name.
    nsys and Kineto exclude each other in a process (one CUPTI subscriber), so a job under `nsys launch`
    cannot trace CUDA with the PyTorch profiler; the note mentions it.
    """
    if not (config.enabled and config.launch):
        return Launch(command=command, session=None, note="Captures with nsys are off (capture.launch).")
    if installation is None:
        return Launch(command=command, session=None, note="nsys not found: Nsight captures unavailable.")
    if installation.refusal:
        note = f"The job runs without nsys: {installation.refusal}"
        return Launch(command=command, session=None, note=note)
    session = session_name(job, unique)
    return Launch(
        command=wrap(command, session, nsys=str(installation.nsys), trace=config.trace),
        session=session,
        note=(
            f"The job runs in the nsys session {session}, ready for captures; "
            "the PyTorch profiler cannot trace CUDA in it (perfd run --no-nsys)."
        ),
    )


def wrap(command: Sequence[str], session: str, *, nsys: str, trace: str = "cuda,nvtx") -> list[str]:
    """The command under `nsys launch`, which collects nothing until `nsys start`.

    Seen with 2022.4 to 2025.3: the exit code is the application's (128 + n if signal n ended it),
    SIGTERM is forwarded to it, and its output is passed through.
    """
    return [nsys, "launch", f"--session-new={session}", f"--trace={trace}", *command]
