"""Passes the output streams of the job through, byte for byte, and copies them to a listener.

They are pipes, or a pseudo-terminal if the job would otherwise have a terminal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PIPE_BYTES = 1024 * 1024
"""The most that Linux allows by default, so that the job rarely waits for us."""
_CHUNK_BYTES = 256 * 1024
"""Of one read; a pipe usually holds 64 KiB."""
_GRACE_S = 0.3
"""Silence after the job's end from which its stream counts as ended: a process that the job left behind
may hold the stream open forever."""
_GRACE_LIMIT_S = 2.0
"""For a stream that is never silent, after the job's end. Chosen."""
_PIPE_MAX_BYTES = 1024 * 1024
"""Linux' limit for an unprivileged pipe: all of it was written before the job ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStream:
    """One stream: the job has `job_fd`, we read `source_fd` and write to `target_fd`."""

    job_fd: int
    source_fd: int
    target_fd: int
    terminal: bool

    def resize(self) -> None:
        """Set the size of the job's terminal to that of ours."""
        if self.terminal:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(self.target_fd, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.source_fd, termios.TIOCSWINSZ, size)


def open_outputs(stdout_fd: int, stderr_fd: int) -> Sequence[JobStream]:
    """Streams for standard output and standard error, in that order.

    There is one for both if both go to the same place (`2>&1`, or one terminal), which
    keeps the order in which the job wrote.
    """
    first = _open(stdout_fd)
    if _same(stdout_fd, stderr_fd):
        return (first,)
    return (first, _open(stderr_fd))


def _open(target_fd: int) -> JobStream:
    terminal = os.isatty(target_fd)
    source_fd, job_fd = _open_terminal(target_fd) if terminal else os.pipe()
    output = JobStream(job_fd=job_fd, source_fd=source_fd, target_fd=target_fd, terminal=terminal)
    if terminal:
        output.resize()
    else:
        # Refused if the user's pipes are too large already: a smaller pipe works too.
        with contextlib.suppress(OSError):
            fcntl.fcntl(source_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return output


def _open_terminal(like_fd: int) -> tuple[int, int]:
    source_fd, job_fd = pty.openpty()
    with contextlib.suppress(termios.error):
        attributes = termios.tcgetattr(like_fd)
        # Our own terminal does this; doing it twice would change the job's output.
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(job_fd, termios.TCSANOW, attributes)
    return source_fd, job_fd


def _same(one_fd: int, other_fd: int) -> bool:
    one, other = os.fstat(one_fd), os.fstat(other_fd)
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


class OutputRelay:
    """Reads `source_fd`, writes the same bytes to `target_fd` and passes them to `listener`.

    A slow target slows the job, as without perfd. If the target's reader is gone, the
    source is closed, so that the job gets SIGPIPE as it would without perfd. If the target
    fails otherwise (a full disk), output is lost and the job continues. Owns `source_fd`.
    """

    def __init__(self, source_fd: int, target_fd: int, listener: Callable[[bytes], None]) -> None:
        self._source_fd = source_fd
        self._target_fd = target_fd
        self._listener = listener
        self._ended_read_fd, self._ended_write_fd = os.pipe()
        self._target_failed: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="perfd-tee", daemon=True)

    @property
    def target_failed(self) -> OSError | None:
        """Why output was lost, if writing it failed."""
        return self._target_failed

    def start(self) -> None:
        """Start passing output through."""
        self._thread.start()

    def job_ended(self) -> None:
        """Report that the job has ended: what is in the stream is still passed on."""
        os.close(self._ended_write_fd)

    def join(self) -> None:
        """Return when the stream has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._pass_until_end()
        finally:
            os.close(self._source_fd)
            os.close(self._ended_read_fd)

    def _pass_until_end(self) -> None:
        poll = select.poll()
        poll.register(self._source_fd, select.POLLIN)
        poll.register(self._ended_read_fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._source_fd in ready:
                if not self._pass_chunk():
                    return
            elif self._ended_read_fd in ready:
                break
        poll.unregister(self._ended_read_fd)
        self._pass_rest(poll)

    def _pass_rest(self, poll: select.poll) -> None:
        deadline = time.monotonic() + _GRACE_LIMIT_S
        passed = 0
        while poll.poll(_GRACE_S * 1000):
            length = self._pass_chunk()
            passed += length
            if not length or (passed >= _PIPE_MAX_BYTES and time.monotonic() > deadline):
                return

    def _pass_chunk(self) -> int:
        """The number of bytes passed on; 0 at the end of the stream."""
        chunk = _read(self._source_fd)
        if not chunk:
            return 0
        if self._target_failed is None:
            try:
                _write_all(self._target_fd, chunk)
            except BrokenPipeError:
                return 0
            except OSError as error:
                self._target_failed = error
        self._listener(chunk)
        return len(chunk)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK_BYTES)
    except OSError as error:
        # A pseudo-terminal whose last user is gone.
        if error.errno == errno.EIO:
            return b""
        raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # Another process that shares our standard output made it non-blocking; wait for space.
            select.select([], [fd], [])
