"""Reads what /proc tells about processes: parent, start, environment, cgroup and pids in namespaces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfd_collectors.ranks.cgroup import CgroupIdentity, parse_cgroup
from perfd_collectors.ranks.environment import RankIdentity, parse_environ, resolve_rank

_MAX_DEPTH = 64
_FEW_THREADS = 32
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """Some of /proc/PID/stat."""

    name: str
    parent: int
    start_ticks: int
    """Since boot: with the pid it names a process for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that was looked at."""

    start_ticks: int
    identity: RankIdentity | None = None
    """The rank that its environment tells of."""
    readable: bool = True
    """Whether this user may read the environment."""
    looks: int = 1


class ProcessTable:
    """Processes below one /proc. Remembers those of the last `look`, whose environments cost most."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: Mapping[int, Process] = {}
        # Once: the kernel computes it anew from its clock each time, so that it may move by a second.
        self._boot_unix_s = parse_boot_time(_read(proc / "stat") or b"")

    def look(self, pids: Iterable[int]) -> Mapping[int, Process]:
        """Those of the processes that are there, and what their environments tell."""
        self._known = {pid: process for pid in pids if (process := self._look(pid)) is not None}
        return self._known

    def stat(self, pid: int) -> ProcessStat | None:
        """The process as it is now, or None when it is not there."""
        content = _read(self._proc / str(pid) / "stat")
        return parse_stat(content) if content else None

    def started_unix_ns(self, start_ticks: int) -> int | None:
        """When a process started that many ticks after boot; None where the boot's time is unknown."""
        if self._boot_unix_s is None:
            return None
        return self._boot_unix_s * 10**9 + start_ticks * 10**9 // _TICKS_PER_S

    def ancestors(self, pid: int) -> list[int]:
        """The process's parent, the parent's parent, and so on."""
        found: list[int] = []
        stat = self.stat(pid)
        while stat is not None and stat.parent > 0 and len(found) < _MAX_DEPTH:
            found.append(stat.parent)
            stat = self.stat(stat.parent)
        return found

    def descendants(self, root: int) -> list[int]:
        """The process and all that came from it, as far as they live."""
        found, queue = [], [root]
        by_parent: Mapping[int, list[int]] | None = None
        while queue:
            pid = queue.pop()
            if self.stat(pid) is None:
                continue
            found.append(pid)
            children = self._children(pid)
            if children is None:
                # A kernel without CONFIG_PROC_CHILDREN.
                by_parent = by_parent if by_parent is not None else self._by_parent()
                children = by_parent.get(pid, [])
            queue += [child for child in children if child not in found]
        return found

    def pids(self) -> list[int]:
        """Every process."""
        return [int(name) for name in _names(self._proc) if name.isdigit()]

    def by_inner_pid(self, wanted: Iterable[int]) -> Mapping[int, int]:
        """Outer pids of processes that have the wanted ones in a pid namespace of their own.

        A pid that several namespaces have is left out: it could be any of them.
        """
        inner: dict[int, list[int]] = {}
        targets = set(wanted)
        for pid in self.pids():
            namespaced = parse_nspid(_read(self._proc / str(pid) / "status") or b"")
            if len(namespaced) > 1 and namespaced[-1] in targets:
                inner.setdefault(namespaced[-1], []).append(pid)
        return {pid: outer[0] for pid, outer in inner.items() if len(outer) == 1}

    def own_container(self) -> str | None:
        """The container that this process itself is in, as its cgroup tells."""
        return parse_cgroup(_read(self._proc / "self" / "cgroup") or b"").container_id

    def _look(self, pid: int) -> Process | None:
        stat = self.stat(pid)
        if stat is None:
            return None
        known = self._known.get(pid)
        if known is None or known.start_ticks != stat.start_ticks:
            return self._read(pid, stat, looks=1)
        # Between fork and exec a process shows its parent's environment, so one look is not enough.
        return known if known.looks > 1 else self._read(pid, stat, looks=2)

    def _read(self, pid: int, stat: ProcessStat, *, looks: int) -> Process:
        folder = self._proc / str(pid)
        identity, readable = None, True
        try:
            environ = parse_environ((folder / "environ").read_bytes())
            identity = resolve_rank(environ, self._cgroup(folder))
        except (FileNotFoundError, ProcessLookupError):
            pass  # It ended just now.
        except OSError:
            readable = False
        return Process(start_ticks=stat.start_ticks, identity=identity, readable=readable, looks=looks)

    def _cgroup(self, folder: Path) -> CgroupIdentity:
        return parse_cgroup(_read(folder / "cgroup") or b"")

    def _children(self, pid: int) -> list[int] | None:
        tasks = self._proc / str(pid) / "task"
        threads = _names(tasks)
        if len(threads) > _FEW_THREADS:
            # A launcher starts its processes from few threads; a rank with hundreds starts none that count.
            threads = [str(pid)]
        found: list[int] = []
        for thread in threads:
            content = _read(tasks / thread / "children")
            if content is None:
                return None
            found += [int(child) for child in content.split() if child.isdigit()]
        return found if threads else None

    def _by_parent(self) -> Mapping[int, list[int]]:
        children: dict[int, list[int]] = {}
        for pid in self.pids():
            stat = self.stat(pid)
            if stat is not None:
                children.setdefault(stat.parent, []).append(pid)
        return children


def parse_stat(content: bytes) -> ProcessStat | None:
    """Read /proc/PID/stat. A process may call itself anything, parentheses and spaces too."""
    head, separator, tail = content.rpartition(b")")
    fields = tail.split()
    if not separator or len(fields) < 20 or not (fields[1].isdigit() and fields[19].isdigit()):
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return ProcessStat(name=name, parent=int(fields[1]), start_ticks=int(fields[19]))


def parse_boot_time(content: bytes) -> int | None:
    """When the machine started, in unix seconds, by /proc/stat."""
    for line in content.splitlines():
        key, _, rest = line.partition(b" ")
        if key == b"btime" and rest.strip().isdigit():
            return int(rest)
    return None


def parse_nspid(status: bytes) -> list[int]:
    """The pids of a process out of /proc/PID/status: the outermost namespace first."""
    for line in status.splitlines():
        key, _, rest = line.partition(b":")
        if key == b"NSpid":
            return [int(field) for field in rest.split() if field.isdigit()]
    return []


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
