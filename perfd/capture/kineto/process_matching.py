"""Maps polling processes to ranks of a job: only processes of the monitored job get requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfd.capture.kineto.client_registry import KinetoClient
from perfd.capture.node import (
    DAEMON_VARIABLE,
    NSYS_SESSION_VARIABLE,
    environment_of,
    lineage,
    namespace_pids,
    runs,
)
from perfd.model import RankPlacement

_SILENT_PERIODS = 3
"""A process that missed three of its own polls cannot take a request in time."""
_SOCKETS_VARIABLE = "KINETO_IPC_SOCKET_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMatch:
    """The clients to trace, by rank, and why the other ranks cannot be."""

    clients: Mapping[int, KinetoClient] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    shared: Mapping[int, int] = field(default_factory=dict)
    """Wanted ranks in the process of another one."""


def match(
    placements: Sequence[RankPlacement], clients: Sequence[KinetoClient], wanted: Sequence[int], proc: Path
) -> ProcessMatch:
    """The polling process of each wanted rank (none: of every rank here)."""
    placed = {one.rank: one.pid for one in placements if one.pid is not None and runs(proc, one.pid)}
    chosen: dict[int, KinetoClient] = {}
    refused: dict[int, str] = {}
    first: dict[int, int] = {}
    shared: dict[int, int] = {}
    for rank in sorted(wanted or placed):
        pid = placed.get(rank)
        if pid is not None and first.setdefault(pid, rank) != rank:
            if wanted:
                shared[rank] = first[pid]
            continue
        if pid is None:
            refused[rank] = f"No process of rank {rank} is known on this node."
            continue
        client = _of(pid, clients, proc)
        if reason := _unfit(pid, client, proc):
            refused[rank] = f"Rank {rank} {reason}"
        elif client is not None:
            chosen[rank] = client
    return ProcessMatch(clients=chosen, refused=refused, shared=shared)


def match_unnamed(
    started: Sequence[int], clients: Sequence[KinetoClient], proc: Path
) -> tuple[Mapping[int, KinetoClient], str]:
    """The polling processes among those of a job without known ranks, by pid; else why there is none."""
    chosen: dict[int, KinetoClient] = {}
    reason = "No Python process of this job runs on this node."
    for pid in started:
        client = _of(pid, clients, proc)
        if client is not None and client.host_pid not in {None, 0, pid}:
            # It polls for itself: the process is only its launcher.
            continue
        if unfit := _unfit(pid, client, proc):
            reason = f"Process {pid} {unfit}"
        elif client is not None:
            chosen[pid] = client
    return chosen, "" if chosen else reason


def _of(pid: int, clients: Sequence[KinetoClient], proc: Path) -> KinetoClient | None:
    """The client that is the rank's process, or the nearest one that the process started."""
    near: list[tuple[int, KinetoClient]] = []
    inner = namespace_pids(proc, pid)
    for client in clients:
        # The kernel's pid of the sender if known, otherwise the client's own.
        line = lineage(proc, client.host_pid) if client.host_pid else ()
        if pid in line:
            near.append((line.index(pid), client))
        elif not client.host_pid and inner and inner[-1] in client.pids:
            near.append((client.pids.index(inner[-1]), client))
    if not near:
        return None
    nearest = min(distance for distance, _ in near)
    alike = [client for distance, client in near if distance == nearest]
    return alike[0] if len(alike) == 1 else None


def _unfit(pid: int, client: KinetoClient | None, proc: Path) -> str:
    environment = environment_of(proc, pid)
    if NSYS_SESSION_VARIABLE in environment:
        return (
            "runs under `nsys launch`, and CUPTI has one subscriber per process: capture it with nsys, "
            "or start the job with perfd run --kineto."
        )
    if client is None and environment and DAEMON_VARIABLE not in environment:
        return f"was started without {DAEMON_VARIABLE}=1, so its PyTorch does not poll for traces."
    if client is None:
        return (
            "did not poll for a configuration. libkineto polls every 5 s from `import torch` on; in another "
            f"container than the agent's it needs {_SOCKETS_VARIABLE} and capture.kineto.socket_directory."
        )
    if client.silent_s > _SILENT_PERIODS * client.period_s:
        return f"has not polled for a configuration for {client.silent_s:.0f} s."
    return "" if client.idle else "is busy: its profiler traces, or ended within the last 5 s; try again."
