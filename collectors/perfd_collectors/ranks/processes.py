"""Reads processes from /proc: parent, start time, environment, cgroup, and PIDs in namespaces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfd_collectors.ranks.cgroup import CgroupIdentity, parse_cgroup
from perfd_collectors.ranks.environment import RankIdentity, parse_environ, resolve_rank, time_limit_unix_s

_MAX_DEPTH = 64
"""Ancestors that are followed; bounds the cost. Chosen, not measured."""
_MAX_SCANNED_THREADS = 32
"""Threads whose children are read: launchers start processes from few threads, and a rank with hundreds of
threads starts none that matter. Chosen, not measured."""
_MULTIPROCESSING = re.compile(rb"from multiprocessing\.(spawn|forkserver) import ")
"""In the command that Python's multiprocessing gives to an interpreter."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """Fields of /proc/PID/stat."""

    name: str
    parent: int
    start_ticks: int
    """Since boot; together with the PID it identifies a process uniquely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process whose environment was read."""

    start_ticks: int
    identity: RankIdentity | None = None
    """The rank in its environment."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The kept variables."""
    cgroup: CgroupIdentity = field(default_factory=CgroupIdentity)
    uid: int | None = None
    time_limit_unix_s: float | None = None
    """When the scheduler ends its job at the latest."""
    readable: bool = True
    """Whether this user can read the environment."""
    reads: int = 1


class ProcessTable:
    """Processes below one /proc. Caches those of the last `refresh`, since reading environments is slow."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: Mapping[int, Process] = {}
        # Read once: the kernel recomputes it from its clock, so it may change by a second.
        self._boot_unix_s = parse_boot_time(_read(proc / "stat") or b"")

    def refresh(self, pids: Iterable[int]) -> Mapping[int, Process]:
        """The existing ones of these processes, with the ranks in their environments."""
        self._known = {pid: process for pid in pids if (process := self._refresh_one(pid)) is not None}
        return self._known

    def stat(self, pid: int) -> ProcessStat | None:
        """The current state of a process; None when it does not exist."""
        content = _read(self._proc / str(pid) / "stat")
        return parse_stat(content) if content else None

    def started_unix_ns(self, start_ticks: int) -> int | None:
        """Start time of a process from ticks since boot; None when the boot time is unknown."""
        if self._boot_unix_s is None:
            return None
        return self._boot_unix_s * 10**9 + start_ticks * 10**9 // _TICKS_PER_S

    def ancestors(self, pid: int) -> list[int]:
        """PIDs of the parent, its parent, and so on."""
        found: list[int] = []
        stat = self.stat(pid)
        while stat is not None and stat.parent > 0 and len(found) < _MAX_DEPTH:
            found.append(stat.parent)
            stat = self.stat(stat.parent)
        return found

    def descendants(self, root: int) -> list[int]:
        """PIDs of a process and all its living descendants."""
        found, queue = [], [root]
        by_parent: Mapping[int, list[int]] | None = None
        while queue:
            pid = queue.pop()
            if self.stat(pid) is None:
                continue
            found.append(pid)
            children = self._children(pid)
            if children is None:
                # The kernel lacks CONFIG_PROC_CHILDREN.
                by_parent = by_parent if by_parent is not None else self._by_parent()
                children = by_parent.get(pid, [])
            queue += [child for child in children if child not in found]
        return found

    def started_by_multiprocessing(self, pid: int, parent: int) -> bool:
        """Whether Python's multiprocessing started a process: by spawn, by its fork server, or by fork."""
        command = _read(self._proc / str(pid) / "cmdline") or b""
        forked = command == (_read(self._proc / str(parent) / "cmdline") or b"")
        return bool(command) and (forked or _MULTIPROCESSING.search(command) is not None)

    def thread_names(self, pid: int) -> frozenset[str]:
        """The names of a process's threads, cut to 15 characters by the kernel."""
        tasks = self._proc / str(pid) / "task"
        names = (_read(tasks / thread / "comm") or b"" for thread in _names(tasks))
        return frozenset(name.decode("utf-8", "replace").strip() for name in names)

    def pids(self) -> list[int]:
        """All PIDs."""
        return [int(name) for name in _names(self._proc) if name.isdigit()]

    def outer_pids(self, wanted: Iterable[int]) -> Mapping[int, int]:
        """Outer PIDs by inner PID, for processes in other PID namespaces.

        Inner PIDs that exist in several namespaces are ambiguous and left out.
        """
        inner: dict[int, list[int]] = {}
        targets = set(wanted)
        for pid in self.pids():
            namespaced = parse_nspid(_read(self._proc / str(pid) / "status") or b"")
            if len(namespaced) > 1 and namespaced[-1] in targets:
                inner.setdefault(namespaced[-1], []).append(pid)
        return {pid: outer[0] for pid, outer in inner.items() if len(outer) == 1}

    def own_container(self) -> str | None:
        """The id of our own container, from our cgroup."""
        return parse_cgroup(_read(self._proc / "self" / "cgroup") or b"").container_id

    def _refresh_one(self, pid: int) -> Process | None:
        stat = self.stat(pid)
        if stat is None:
            return None
        known = self._known.get(pid)
        if known is None or known.start_ticks != stat.start_ticks:
            return self._read(pid, stat, reads=1)
        # Between fork and exec a process has its parent's environment: read it twice.
        return known if known.reads > 1 else self._read(pid, stat, reads=2)

    def _read(self, pid: int, stat: ProcessStat, *, reads: int) -> Process:
        folder = self._proc / str(pid)
        environ: Mapping[str, str] = {}
        readable = True
        try:
            environ = parse_environ((folder / "environ").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            pass  # Ended meanwhile.
        except OSError:
            readable = False
        cgroup, uid = self._cgroup(folder), parse_uid(_read(folder / "status") or b"")
        return Process(
            start_ticks=stat.start_ticks,
            identity=resolve_rank(environ, cgroup, uid),
            environ=environ,
            cgroup=cgroup,
            uid=uid,
            time_limit_unix_s=time_limit_unix_s(environ),
            readable=readable,
            reads=reads,
        )

    def _cgroup(self, folder: Path) -> CgroupIdentity:
        return parse_cgroup(_read(folder / "cgroup") or b"")

    def _children(self, pid: int) -> list[int] | None:
        tasks = self._proc / str(pid) / "task"
        threads = _names(tasks)
        if len(threads) > _MAX_SCANNED_THREADS:
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
    """Parse /proc/PID/stat. A process name may contain parentheses and spaces."""
    head, separator, tail = content.rpartition(b")")
    fields = tail.split()
    if not separator or len(fields) < 20 or not (fields[1].isdigit() and fields[19].isdigit()):
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return ProcessStat(name=name, parent=int(fields[1]), start_ticks=int(fields[19]))


def parse_boot_time(content: bytes) -> int | None:
    """Boot time in Unix seconds from /proc/stat."""
    for line in content.splitlines():
        key, _, rest = line.partition(b" ")
        if key == b"btime" and rest.strip().isdigit():
            return int(rest)
    return None


def parse_uid(status: bytes) -> int | None:
    """The effective user of a process from /proc/PID/status; the owner of its folder may be root instead."""
    for line in status.splitlines():
        key, _, rest = line.partition(b":")
        if key == b"Uid" and len(users := rest.split()) > 1 and users[1].isdigit():
            return int(users[1])
    return None


def parse_nspid(status: bytes) -> list[int]:
    """PIDs of a process from /proc/PID/status, outermost namespace first."""
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
