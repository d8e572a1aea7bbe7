"""The command of `perfd run`: starts it, signals it and waits for it as a shell would."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from perfd.errors import PerfdError, reason_of

FORWARDED = frozenset({
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
})  # fmt: skip
"""Signals that `perfd run` forwards to the job."""
WATCHED = FORWARDED | {signal.SIGCHLD, signal.SIGWINCH}
_PR_SET_PDEATHSIG = 1
_SHOWN_CHARS = 200
"""Of a command that is too long to start."""
_SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent (sigaction(2)). The terminal's driver sends the two below to all
foreground processes, like that of a new size; it may send a hang-up to us alone, as the session's leader."""
_KEYS = frozenset({signal.SIGINT, signal.SIGQUIT})
_HANDED_ON = frozenset({signal.SIGINT, signal.SIGTERM})
"""The signals that `nsys launch` forwards to its application, once; others kill nsys without reaching the
application (seen with 2025.3.1)."""


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


class CommandError(PerfdError):
    """The command could not be started; `exit_code` is the one that a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ChildProcess:
    """A running command. Only the main thread may use it, and `WATCHED` must be blocked in all threads.

    With `own_group` the command gets its own process group, which receives the signals.
    Without, it shares ours, as a command that reads from the terminal must: then the
    terminal itself signals it. With `launcher` the command is one like `nsys launch`: it
    runs the job in another session, forwards SIGTERM and SIGINT to it, and would die of
    other signals, which are therefore sent to the job directly.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout_fd: int,
        stderr_fd: int,
        own_group: bool,
        launcher: bool,
        signal_mask: Collection[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        parent_pid = os.getpid()
        libc = ctypes.CDLL(None, use_errno=True)

        def prepare() -> None:
            # If perfd dies of SIGKILL, the job gets SIGTERM, as from its terminal or launcher.
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent_pid:
                os._exit(128 + signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)

        try:
            # The process has one thread until the job runs, so code between fork and exec is safe.
            self._process = subprocess.Popen(
                command,
                stdout=stdout_fd,
                stderr=stderr_fd,
                env=environment,
                process_group=0 if own_group else None,
                preexec_fn=prepare,  # noqa: PLW1509
            )
        except FileNotFoundError as error:
            missing = (
                "the interpreter in its first line does not exist"
                if Path(command[0]).exists()
                else "command not found"
            )
            raise CommandError(f"{command[0]}: {missing}.", 127) from error
        except PermissionError as error:
            raise CommandError(f"{command[0]}: permission denied.", 126) from error
        except (OSError, ValueError) as error:
            reason = reason_of(error)
            if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
                reason = "not a program, and its first line names no interpreter, such as #!/bin/bash"
            raise CommandError(f"{command[0][:_SHOWN_CHARS]} cannot be started: {reason}.", 126) from error
        self._own_group = own_group
        self._launcher = launcher

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def wait(self, on_resize: Callable[[], None] = lambda: None) -> int:
        """Forward signals until the command ends; its exit code, 128 + n if signal n ended it."""
        while self._process.poll() is None:
            received = signal.sigwaitinfo(WATCHED)
            if received.si_signo == signal.SIGWINCH:
                on_resize()
                self._announce_size(received)
            elif received.si_signo in FORWARDED:
                self._forward(received)
        return exit_code(self._process.returncode)

    def _announce_size(self, received: signal.struct_siginfo) -> None:
        # The terminal signals the job before `on_resize` runs, or not at all: it may have read the old size.
        if received.si_code == _SI_KERNEL and not self._launcher:
            _send(os.killpg, self.pid if self._own_group else os.getpgrp(), signal.SIGWINCH)

    def _forward(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        if self._launcher and number in _HANDED_ON:
            # The launcher signals the application only; a terminal would signal its whole process group.
            for follower in followers_of_children(self.pid):
                _send(os.kill, follower, number)
        if self._launcher and number not in _HANDED_ON:
            for group in groups_below(self.pid):
                _send(os.killpg, group, number)
        elif not self._own_group and received.si_code == _SI_KERNEL and number in _KEYS:
            return
        elif self._own_group and not self._launcher:
            _send(os.killpg, self.pid, number)
        else:
            _send(os.kill, self.pid, number)


def _send(kill: Callable[[int, int], None], target: int, number: int) -> None:
    # It may just have ended, or changed its user; SIGCHLD reports its end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(target, number)


def exit_code(returncode: int) -> int:
    """A shell's exit code for what `subprocess` reports."""
    return 128 - returncode if returncode < 0 else returncode
