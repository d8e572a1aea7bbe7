"""The job's output streams: pipes, or a pseudo-terminal if it would otherwise have a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import termios
from collections.abc import Sequence
from dataclasses import dataclass

_PIPE_BYTES = 1024 * 1024
"""The most that Linux allows by default, so that the job rarely waits for us."""


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
        attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
        termios.tcsetattr(job_fd, termios.TCSANOW, attributes)
    return source_fd, job_fd


def _same(one_fd: int, other_fd: int) -> bool:
    one, other = os.fstat(one_fd), os.fstat(other_fd)
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
