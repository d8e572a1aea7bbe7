"""Which process groups a process has started, by /proc."""

from __future__ import annotations

from pathlib import Path


def groups_below(pid: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """The process groups of all descendants of a process but its own group."""
    parents, groups = _tree(proc)
    below: set[int] = set()
    newest = {pid}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest} - below
        below |= newest
    return frozenset(groups[child] for child in below) - {groups.get(pid, pid)}


def followers_of_children(pid: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """The processes in groups that children of a process lead, without those leaders."""
    parents, groups = _tree(proc)
    led = {child for child, parent in parents.items() if parent == pid and groups[child] == child}
    return frozenset(process for process, group in groups.items() if group in led) - led


def _tree(proc: Path) -> tuple[dict[int, int], dict[int, int]]:
    """The parent and the process group of every process."""
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}
    for entry in proc.glob("[0-9]*/stat"):
        try:
            # The command's name stands in brackets and may hold anything: what counts comes after it.
            _, parent, group = entry.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # It has just ended.
        parents[int(entry.parent.name)] = int(parent)
        groups[int(entry.parent.name)] = int(group)
    return parents, groups
