"""The processes of one step of a SLURM job on this node, and which of them are its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfd.capture.node import environment_of, lineage, pids
from perfd.collector import CollectorSpec, Settings
from perfd.errors import Unavailable
from perfd.model import RankPlacement

Lines = Mapping[int, Sequence[int]]
"""Processes of a step by pid: each with its ancestors, itself first."""


def ranks_here(
    spec: CollectorSpec, *, job: str, job_id: str, step: int | None, node: str, proc: Path
) -> list[RankPlacement]:
    """The ranks of a step on this node, as the `ranks` collector (`spec`) reports them."""
    lines = step_members(proc, job_id=job_id, step=step, node=node)
    found: dict[int, RankPlacement] = {}
    for root in _parents_of_all(lines):
        for placement in _collect(spec, root, Settings(node=node, job=job, proc=proc)):
            found.setdefault(placement.rank, placement)
    pythons = {pid for pid in lines if _is_python(proc, pid)}
    return [
        placement
        if placement.pid is None
        else replace(placement, pid=interpreter(placement.pid, lines, pythons))
        for _, placement in sorted(found.items())
    ]


def step_members(proc: Path, *, job_id: str, step: int | None, node: str) -> Lines:
    """The processes of a step on this node whose environment we can read.

    One machine may be several nodes of SLURM, and a process may have been started without the node's name.
    """
    return {
        pid: lineage(proc, pid)
        for pid in pids(proc)
        if (environment := environment_of(proc, pid)).get("SLURM_JOB_ID") == job_id
        and environment.get("SLURM_STEP_ID") == (None if step is None else str(step))
        and environment.get("SLURMD_NODENAME", node) == node
    }


def interpreter(pid: int, lines: Lines, pythons: Collection[int]) -> int:
    """The process itself if it is a Python, otherwise the nearest below it: a shell may wrap a rank."""
    below = sorted(
        (line.index(pid), other) for other, line in lines.items() if pid in line and other in pythons
    )
    return below[0][1] if below else pid


def _is_python(proc: Path, pid: int) -> bool:
    try:
        return (proc / str(pid) / "exe").readlink().name.startswith("python")
    except OSError:
        return False


def _parents_of_all(lines: Lines) -> list[int]:
    """The daemons that started the step's tasks: parents that are not members themselves."""
    parents = dict.fromkeys(line[1] for line in lines.values() if len(line) > 1 and line[1] not in lines)
    # An orphan has init as parent, with all of the node's processes below it.
    return [parent for parent in parents if parent > 1]


def _collect(spec: CollectorSpec, root: int, settings: Settings) -> list[RankPlacement]:
    options = spec.options(root_pid=root)
    try:
        collector = spec.create(options, settings)
    except Unavailable:
        return []
    try:
        return [record for record in collector.collect() if isinstance(record, RankPlacement)]
    finally:
        collector.close()
