"""Which process groups a process has started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import psutil


def groups_below(pid: int) -> frozenset[int]:
    """The process groups of all descendants of a process, except its own group."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return frozenset()
    return frozenset(_groups(child.pid for child in below).values()) - {*_groups([pid]).values(), pid}


def followers_of_children(pid: int) -> frozenset[int]:
    """The processes in groups led by children of a process, except those leaders."""
    try:
        children = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return frozenset()
    groups = _groups(psutil.pids())
    led = {child.pid for child in children if groups.get(child.pid) == child.pid}
    return frozenset(process for process, group in groups.items() if group in led) - led


def _groups(pids: Iterable[int]) -> dict[int, int]:
    """The process group of each process that still exists."""
    groups: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            groups[pid] = os.getpgid(pid)
    return groups
