"""The processes of a job on this node, as targets of a capture: those of ranks, or all that a run started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfd.capture.node.capture_tool import CaptureTarget, Readiness, Tool
from perfd.capture.node.process_environment import RUN_VARIABLE, environment_of, pids, runs
from perfd.model import RankPlacement

_MAX_PROCESSES = 32
"""Captured at once of processes without a known rank, such as data loaders. Chosen, not measured."""


class ProcessTool(Tool):
    """A tool that captures processes of this node."""

    _proc: Path

    def alive(self, targets: Sequence[CaptureTarget]) -> bool:
        """Whether one of the processes runs."""
        return any(runs(self._proc, pid) for target in targets for pid in target.processes)


def placed_targets(placements: Sequence[RankPlacement], ranks: Sequence[int], proc: Path) -> Readiness:
    """One target for each process of the wanted ranks (none: every one) that runs here.

    A process of several ranks counts as its lowest one.
    """
    placed = {p.rank: p.pid for p in placements if p.pid is not None and runs(proc, p.pid)}
    wanted = sorted(ranks or placed)
    first: dict[int, int] = {}
    for rank in wanted:
        if rank in placed:
            first.setdefault(placed[rank], rank)
    shared = {
        rank: first[pid] for rank in ranks if (pid := placed.get(rank)) is not None and first[pid] != rank
    }
    return Readiness(
        targets=[CaptureTarget(handle=f"pid:{pid}", processes={pid: rank}) for pid, rank in first.items()],
        refused={
            rank: f"No process of rank {rank} is known on this node." for rank in wanted if rank not in placed
        },
        shared=shared,
        reason="No process of this job is known on this node." if not placed else "",
    )


def started_pythons(proc: Path, run: str) -> list[int]:
    """The Python processes that a `perfd run` started, the oldest PIDs first."""
    found = (pid for pid in pids(proc) if environment_of(proc, pid).get(RUN_VARIABLE) == run)
    return sorted(pid for pid in found if _is_python(proc, pid) and runs(proc, pid))[:_MAX_PROCESSES]


def _is_python(proc: Path, pid: int) -> bool:
    """Whether a process runs an interpreter: its program may be a script that is named otherwise."""
    try:
        program = (proc / str(pid) / "exe").readlink().name
    except OSError:
        return False
    return program.startswith("python")
