"""The side of the agent: starts a sandbox, and asks it."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from perfd.errors import SandboxError
from perfd.sandbox.message_channel import ChannelClosedError, receive, send

log = logging.getLogger(__name__)

Reader = Callable[[bytes], bytes]
"""Runs in the sandbox, and answers one message after the other. What it raises becomes a `SandboxError`."""
FILTERED, UNFILTERED = b"filtered", b"unfiltered"
ANSWER, REFUSAL = b"+", b"-"
"""The first byte of an answer."""
_ENDS_ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STARTS_WITHIN_S = 60.0
"""Imports on a busy node with a cold disk; the agent's start waits for it."""
_ENDS_WITHIN_S = 5.0
"""After its pipe was closed; then it is killed."""


class Sandbox:
    """One process that runs a reader without any rights; for one thread.

    The reader is named `MODULE:FUNCTION`: the function returns it, once it has imported all that it needs.
    Raises `SandboxError` when the process does not start.
    """

    def __init__(self, reader: str, *, answers_within_s: float = 60.0) -> None:
        self._answers_within_s = answers_within_s
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-P",
                "-m",
                "perfd.sandbox.sandbox_main",
                reader,
                str(theirs.fileno()),
            ]
            # A signal to all processes of an agent (scancel, systemd, Ctrl-C) must not take its reader from
            # it: it still reads what its job wrote last. The mask is inherited; the reader ends with the
            # channel.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS_ALL)
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        started = self._receive(_STARTS_WITHIN_S)
        self.filters_system_calls = started == FILTERED
        """Whether the kernel lets it make only a few system calls."""
        if not self.filters_system_calls:
            log.warning("This kernel cannot filter the system calls of the process that reads users' files.")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, message: bytes) -> bytes:
        """The reader's answer; raises `SandboxError` with what it raised, or when its process ended."""
        try:
            send(self._channel, message)
        except OSError as error:
            raise self._ended() from error
        answer = self._receive(self._answers_within_s)
        if answer[:1] != ANSWER:
            raise SandboxError(answer[1:].decode("utf-8", "replace"))
        return answer[1:]

    def close(self) -> None:
        """End the process; legal twice."""
        self._channel.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, within_s: float) -> bytes:
        try:
            return receive(self._channel, within_s)
        except ChannelClosedError as error:
            raise self._ended() from error

    def _ended(self) -> SandboxError:
        self._process.kill()
        code = self._process.wait()
        self._channel.close()
        why = "took too long" if code == -signal.SIGKILL else f"ended with {code}"
        return SandboxError(f"The process that reads users' files without rights {why}; it is started again.")
