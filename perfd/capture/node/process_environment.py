"""The environment of this node's processes, from /proc/PID/environ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from perfd.procfs import rooted

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""The more specific first: torchrun's own before the launcher's."""
RUN_VARIABLE = "PERFD_RUN"
"""The `perfd run` of a process: several may monitor jobs on one node."""
DAEMON_VARIABLE = "KINETO_USE_DAEMON"
"""With 1, PyTorch polls a daemon of its node for trace requests."""
NSYS_SESSION_VARIABLE = "NSYS_PROFILING_SESSION_ID"
"""Set by `nsys launch` in the application and inherited by all its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessScan:
    """The processes that could be read, and how many could not."""

    environments: Mapping[int, Mapping[str, str]]
    """By pid, of processes that carry an nsys session."""
    unreadable: int


def scan_nsys_processes(proc: Path) -> ProcessScan:
    """Every process of the node that runs in an nsys session."""
    mark = f"{NSYS_SESSION_VARIABLE}=".encode()
    environments: dict[int, Mapping[str, str]] = {}
    unreadable = 0
    for pid in pids(proc):
        try:
            content = (proc / str(pid) / "environ").read_bytes()
        except PermissionError:
            unreadable += 1
        except OSError:
            continue  # It has just ended.
        else:
            if mark in content:
                environments[pid] = parse_environ(content)
    return ProcessScan(environments=environments, unreadable=unreadable)


def parse_environ(content: bytes) -> dict[str, str]:
    """The variables in the bytes of /proc/PID/environ; entries other than NAME=VALUE are skipped.

    psutil's ends at the first empty entry, which a process leaves that writes its title over it.
    """
    entries = (entry.partition(b"=") for entry in content.split(b"\0"))
    return {
        name.decode(errors="surrogateescape"): value.decode(errors="surrogateescape")
        for name, separator, value in entries
        if separator and name
    }


def environment_of(proc: Path, pid: int) -> dict[str, str]:
    """The variables that a process was started with; empty if they cannot be read."""
    try:
        return parse_environ((proc / str(pid) / "environ").read_bytes())
    except OSError:
        return {}


def lineage(proc: Path, pid: int) -> tuple[int, ...]:
    """A process and its ancestors, nearest first, up to the first that cannot be read."""
    if pid <= 0:
        return ()
    try:
        with rooted(proc):
            return (pid, *(parent.pid for parent in psutil.Process(pid).parents()))
    except psutil.Error:
        return (pid,)


def owner_of(proc: Path, pid: int) -> tuple[int, int] | None:
    """The effective user and group of a process; None if it is gone."""
    try:
        with rooted(proc):
            process = psutil.Process(pid)
            return process.uids().effective, process.gids().effective
    except psutil.Error:
        return None


def namespace_pids(proc: Path, pid: int) -> tuple[int, ...]:
    """The pids of a process from our namespace down to its own; empty if they cannot be read."""
    try:
        content = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return ()
    line = next((line for line in content.splitlines() if line.startswith("NSpid:")), "")
    return tuple(int(word) for word in line.split()[1:] if word.isdecimal())


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The global rank that a process was given by its launcher."""
    for name in RANK_VARIABLES:
        if (value := environment.get(name, "")).isdecimal() and value.isascii():
            return int(value)
    return None


def runs(proc: Path, pid: int) -> bool:
    """Whether a process exists and has not ended (a zombie has)."""
    try:
        with rooted(proc):
            return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.Error:
        return False


def pids(proc: Path) -> Iterator[int]:
    """The pids of all processes."""
    return (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
