"""The `hook` collector: a Unix datagram socket that training loops write to."""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfd.collector import (
    UNNAMED_JOB,
    CollectorSpec,
    Column,
    ColumnKind,
    OnUnavailable,
    Options,
    Settings,
)
from perfd.errors import Unavailable
from perfd.file_access import bind_socket, remove_socket
from perfd.hook import default_socket
from perfd.model import JobDescription, Record, SampleTable, Scope
from perfd_collectors.hook.datagrams import (
    MAX_BYTES,
    HookMessage,
    description_of,
    parse_message,
    records_of,
)
from perfd_collectors.hook.sender_auth import SenderAuth
from perfd_collectors.ranks.process_jobs import ProcessJobs

_MAX_MESSAGES_PER_COLLECT = 10_000
_MAX_DROPPED_PER_COLLECT = 1_000
_MAX_BYTES_PER_COLLECT = 8 << 20
"""Bound the memory of a collect, and the time of the agent while a user floods the socket: the rest waits
there until the next one. Chosen, not measured: 8 ranks with 1,000 steps a second send half as much."""
_MAX_JOBS = 10_000
"""Jobs whose description is remembered; bounds memory."""
_RECEIVE_BUFFER_BYTES = 4 << 20
"""Requested of the kernel, which limits it to net.core.rmem_max."""
_MAX_LISTEN_S = 0.9
"""`collect` may block for at most a second."""
_NOBODY_UID = 65_534
"""The kernel's overflow user id (/proc/sys/kernel/overflowuid), for unknown senders."""
_ROOT_UID = 0
"""The user id of root."""
_SENDER = struct.Struct("@iII")
"""The kernel's `struct ucred`: pid, uid, gid."""
COLUMNS = (
    Column(
        scope=Scope.NODE,
        name="hook_unsound_messages",
        help="Datagrams to the hook's socket that were dropped because they are invalid.",
        source="the hook's socket",
        absent="Before the first datagram.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.NODE,
        name="hook_foreign_messages",
        help="Datagrams that were dropped because their sender is not the job's user.",
        source="the hook's socket; the kernel reports the sender's user (SO_PASSCRED)",
        absent="Before the first datagram.",
        kind=ColumnKind.COUNTER,
    ),
)


class HookOptions(Options, frozen=True):
    """What an operator may set."""

    socket: str | None = None
    """Path of the socket; default: that of `perfd.hook`. Set PERFD_HOOK_SOCKET in jobs for another one."""
    mode: int = 0o666
    """Permissions of the socket: jobs may run as other users."""
    listen_s: float = 0.5
    """How long a collect listens. Linux queues only ten datagrams (net.unix.max_dgram_qlen), so it must
    listen continuously."""


class HookCollector:
    """Receives datagrams and turns them into records.

    Invalid datagrams, and those of another user than the job's, are dropped and counted.
    """

    def __init__(self, options: HookOptions, settings: Settings) -> None:
        self._path = Path(options.socket or default_socket())
        self._job = settings.job
        self._clock = settings.clock
        self._own_uid = os.geteuid()
        self._senders = SenderAuth(self._own_uid)
        self._local_jobs = settings.local_jobs
        self._jobs = ProcessJobs(settings) if settings.job == UNNAMED_JOB else None
        self._listen_s = min(_MAX_LISTEN_S, options.listen_s)
        self._socket = _bound(self._path, options.mode)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._described: dict[str, tuple[int, JobDescription]] = {}
        """By job: the rank that described it, and its description."""
        self.unsound_messages = 0
        self.foreign_messages = 0

    def collect(self) -> Sequence[Record]:
        dropped_before = self._dropped()
        messages = self._messages()
        records = [*self._descriptions(messages), *records_of(messages, self._job)]
        if messages or self._dropped() != dropped_before:
            records.append(self._counts())
        return records

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._socket.close()
            remove_socket(self._path)

    def _messages(self) -> list[HookMessage]:
        messages: list[HookMessage] = []
        until_s = time.monotonic() + self._listen_s
        left_bytes, most_dropped = _MAX_BYTES_PER_COLLECT, self._dropped() + _MAX_DROPPED_PER_COLLECT
        while len(messages) < _MAX_MESSAGES_PER_COLLECT and left_bytes > 0 and self._dropped() < most_dropped:
            # Queued datagrams are always read; the remaining time is spent waiting for more.
            left_s = max(0.0, until_s - time.monotonic())
            if not self._poll.poll(1000 * left_s):
                break
            content, uid, pid = self._receive()
            left_bytes -= len(content)
            message = self._named(parse_message(content), pid)
            if message is None:
                self.unsound_messages += 1
            elif not self._accepts(message.job or self._job, uid):
                self.foreign_messages += 1
            else:
                messages.append(message)
        if self._jobs is not None:
            self._jobs.keep(())
        return messages

    def _named(self, message: HookMessage | None, pid: int) -> HookMessage | None:
        """The message with the job of its sender, where it names none and an agent serves several jobs."""
        if message is None or message.job is not None or self._jobs is None:
            return message
        return msgspec.structs.replace(message, job=self._jobs.job_of(pid))

    def _accepts(self, job: str, uid: int) -> bool:
        """Whether a user may send for a job: the one whose ranks are here, where that is known.

        Without the `ranks` collector an agent of root cannot know whose job it is: only root is believed.
        """
        user = self._local_jobs.uid(job)
        if user is None and self._own_uid == _ROOT_UID and not self._local_jobs.looked_for:
            user = _ROOT_UID
        if user is not None and uid not in {user, self._own_uid}:
            return False
        return self._senders.accept(job, uid, self._clock.monotonic_s())

    def _receive(self) -> tuple[bytes, int, int]:
        """A datagram, its sender's user id, and its process, 0 where that is in no namespace of ours."""
        content, ancillary, _, _ = self._socket.recvmsg(MAX_BYTES, socket.CMSG_SPACE(_SENDER.size))
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _SENDER.size:
                pid, uid, _ = _SENDER.unpack(data)
                return content, int(uid), int(pid)
        return content, _NOBODY_UID, 0

    def _dropped(self) -> int:
        return self.unsound_messages + self.foreign_messages

    def _counts(self) -> SampleTable:
        counts = {
            "hook_unsound_messages": self.unsound_messages,
            "hook_foreign_messages": self.foreign_messages,
        }
        return SampleTable.of_node(self._clock.unix_ns(), counts)

    def _descriptions(self, messages: Sequence[HookMessage]) -> list[Record]:
        """The description of each new job, and of one that restarted with another layout.

        Only the lowest rank seen so far may change a description: ranks may contradict each other.
        """
        records: list[Record] = []
        for message in messages:
            job = message.job or self._job
            description = description_of(message, self._job)
            rank, known = self._described.get(job, (None, None))
            room = rank is not None or len(self._described) < _MAX_JOBS
            contradicts = rank is not None and message.rank > rank
            if description is None or description == known or contradicts or not room:
                continue
            self._described[job] = message.rank, description
            records.append(description)
        return records


def _bound(path: Path, mode: int) -> socket.socket:
    """A socket bound to `path`; replaces one left over by a killed agent."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Before bind: otherwise the first datagrams would have no sender.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if _left_over(path):
            remove_socket(path)
        bind_socket(listener, path, mode)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen for training loops at {path}: {error.strerror or error}; set another path with "
            "collectors.hook.options.socket, and PERFD_HOOK_SOCKET for the job."
        ) from error
    return listener


def _left_over(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode) or path.lstat().st_uid != os.getuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


SPEC = CollectorSpec(
    name="hook",
    options=HookOptions,
    create=HookCollector,
    interval_s=0.1,
    on_unavailable=OnUnavailable.IGNORE,
    columns=COLUMNS,
)
