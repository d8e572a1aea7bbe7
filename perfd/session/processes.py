"""Which process groups a process has started, by /proc."""

from __future__ import annotations

from pathlib import Path


def groups_below(pid: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """The process groups of all descendants of a process but its own group."""
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
    below: set[int] = set()
    newest = {pid}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest} - below
        below |= newest
    return frozenset(groups[child] for child in below) - {groups.get(pid, pid)}
