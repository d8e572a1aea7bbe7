"""What the processes of this node say about themselves in /proc/PID/environ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""In the order of how much they say: torchrun's own before the launcher's."""
NSYS_SESSION_VARIABLE = "NSYS_PROFILING_SESSION_ID"
"""Set by `nsys launch` in the application and inherited by all its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The processes that could be read, and how many could not."""

    environments: Mapping[int, Mapping[str, str]]
    """By pid, of processes that carry an nsys session."""
    unreadable: int


def scan_nsys_processes(proc: Path) -> Scan:
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
            continue  # It ended while we looked.
        else:
            if mark in content:
                environments[pid] = parse_environ(content)
    return Scan(environments=environments, unreadable=unreadable)


def parse_environ(content: bytes) -> dict[str, str]:
    """The variables in the bytes of /proc/PID/environ; what is no NAME=VALUE is left out."""
    entries = (entry.partition(b"=") for entry in content.split(b"\0"))
    return {
        name.decode(errors="surrogateescape"): value.decode(errors="surrogateescape")
        for name, separator, value in entries
        if separator and name
    }


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The global rank that a process was given by its launcher."""
    for name in RANK_VARIABLES:
        if (value := environment.get(name, "")).isdecimal() and value.isascii():
            return int(value)
    return None


def runs(proc: Path, pid: int) -> bool:
    """Whether a process exists and has not ended (a zombie has)."""
    try:
        state = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[:1]
    except OSError:
        return False
    return state not in ([b"Z"], [b"X"])


def pids(proc: Path) -> Iterator[int]:
    """The pids of all processes."""
    return (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
