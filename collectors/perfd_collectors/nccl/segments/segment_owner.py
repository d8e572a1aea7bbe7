"""Whether a segment is of the process that it says: shared memory is everybody's to write to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfd.capture.node import namespace_pids, owner_of

_ROOT = 0


class OwnerLocks:
    """Who holds a lock of its own on a file, by /proc/locks (`man 5 proc_locks`), read when first asked."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self._holders: dict[str, list[int]] | None = None

    def holders(self, inode: int) -> Sequence[int]:
        """The processes that locked this file as a whole."""
        if self._holders is None:
            self._holders = self._read()
        return self._holders.get(str(inode), ())

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


def writer_of(locks: OwnerLocks, status: os.stat_result, pid: int) -> int | None:
    """The process that writes a segment, by its pid in our namespace; None when it is not seen from here.

    It holds the lock on the file as long as it lives, and the kernel tells of each lock who took it. The pid
    in the segment is the process's own, which in a container is another one than ours.
    """
    for holder in locks.holders(status.st_ino):
        own = namespace_pids(locks.proc, holder)
        if own and own[-1] == pid:
            return holder
    return None


def distrust(locks: OwnerLocks, status: os.stat_result, pid: int, agent_uid: int) -> str:
    """Why a segment is not believed, as a clause; empty when it is.

    Whoever can write to the directory can make a file that claims to be any rank's. So its owner must be the
    user of the process that writes it; one that nobody is seen to write must be of the agent's own user.
    """
    if agent_uid not in {_ROOT, status.st_uid}:
        return f"it belongs to user {status.st_uid}, and this agent is run by user {agent_uid}"
    writer = writer_of(locks, status, pid)
    owner = None if writer is None else owner_of(locks.proc, writer)
    if owner is None and status.st_uid != agent_uid:
        return (
            f"it belongs to user {status.st_uid}, and no process {pid} is seen that writes it; in containers"
            " the agent needs the job's process namespace (hostPID, shareProcessNamespace)"
        )
    if owner is not None and owner[0] != status.st_uid:
        return f"it belongs to user {status.st_uid}, but its process {pid} to user {owner[0]}"
    return ""
