"""Whether a segment belongs to the process it names: any user can write to shared memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfd.capture.node import namespace_pids, owner_of

_ROOT = 0
"""The user id of root, who may read all segments."""


class FileLocks:
    """Which processes hold a lock on a file, from /proc/locks (`man 5 proc_locks`), read on first use."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self._holders: dict[str, list[int]] | None = None

    def holders(self, inode: int) -> Sequence[int]:
        """PIDs of the processes that hold an exclusive lock on the whole file."""
        return self._by_inode().get(str(inode), ())

    def all_holders(self) -> set[int]:
        """PIDs of the processes that hold such a lock on any file."""
        return {pid for pids in self._by_inode().values() for pid in pids}

    def _by_inode(self) -> dict[str, list[int]]:
        if self._holders is None:
            self._holders = self._read()
        return self._holders

    def _read(self) -> dict[str, list[int]]:
        try:
            lines = (self.proc / "locks").read_text(errors="replace").splitlines()
        except OSError:
            return {}
        found: dict[str, list[int]] = {}
        for line in lines:
            # 1: FLOCK  ADVISORY  WRITE 1234 00:1a:56 0 EOF
            match line.split():
                case [_, "FLOCK", _, "WRITE", pid, file, *_] if pid.isdecimal():
                    found.setdefault(file.rpartition(":")[2], []).append(int(pid))
        return found


def writer_of(locks: FileLocks, status: os.stat_result, pid: int) -> int | None:
    """The PID, in our namespace, of the process that writes a segment; None when it is not visible.

    It holds a lock on the file while it lives, and the kernel lists the holder of each lock. The PID in
    the segment is that of the process's own namespace, which differs in a container.
    """
    for holder in locks.holders(status.st_ino):
        own = namespace_pids(locks.proc, holder)
        if own and own[-1] == pid:
            return holder
    return None


def ownership_problem(
    locks: FileLocks, status: os.stat_result, pid: int, agent_uid: int, job_uid: int | None = None
) -> str:
    """Why a segment is not trusted, as a clause; empty when it is.

    Anyone who can write to the directory can create a file that claims to be a rank's. Its owner must be the
    user of the process that writes it, or the agent's own user if no such process is visible. It must be the
    job's user too, where that is known.
    """
    if job_uid is not None and status.st_uid not in {job_uid, agent_uid}:
        return f"it belongs to user {status.st_uid}, and the job to user {job_uid}"
    if agent_uid not in {_ROOT, status.st_uid}:
        return f"it belongs to user {status.st_uid}, and this agent runs as user {agent_uid}"
    writer = writer_of(locks, status, pid)
    owner = None if writer is None else owner_of(locks.proc, writer)
    if owner is None and status.st_uid != agent_uid:
        return (
            f"it belongs to user {status.st_uid}, and its process {pid} is not visible; in containers the"
            " agent needs the job's PID namespace (hostPID, shareProcessNamespace)"
        )
    if owner is not None and owner[0] != status.st_uid:
        return f"it belongs to user {status.st_uid}, but its process {pid} runs as user {owner[0]}"
    return ""
