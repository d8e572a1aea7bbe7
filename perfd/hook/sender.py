"""Where the agent of this node listens for the hook, and a sender that never makes the job wait."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections import deque
from collections.abc import Mapping

SOCKET_VARIABLE = "PERFD_HOOK_SOCKET"
NODE_VARIABLE = "PERFD_HOOK_NODE"
"""On which machine that socket is, from those whose job may go on to others with their environment."""
_SYSTEM_SOCKET = "/run/perfd/hook.sock"
_MOST_UNSENT = 64


def default_socket(environ: Mapping[str, str] | None = None) -> str:
    """Where the agent listens: as the environment says, else the system's place, else the user's.

    A socket of another machine is left out, as after `perfd run -- srun ...`; of a container that has another
    name it may be here all the same.
    """
    known = os.environ if environ is None else environ
    said = known.get(SOCKET_VARIABLE)
    here = known.get(NODE_VARIABLE) in {None, socket.gethostname()}
    if said and (here or os.path.exists(said)):  # noqa: PTH110  (pathlib costs the job an import)
        return said
    if os.path.isdir(os.path.dirname(_SYSTEM_SOCKET)):  # noqa: PTH112, PTH120  (pathlib costs the job an import)
        return _SYSTEM_SOCKET
    return f"{tempfile.gettempdir()}/perfd-hook-{os.getuid()}.sock"


class Sender:
    """A datagram socket to the agent; whatever goes wrong with it is no matter of the job's."""

    def __init__(self, path: str | None) -> None:
        self._path = path or default_socket()
        self._socket: socket.socket | None = None
        # The kernel keeps only a few datagrams for a listener; the rest waits here for the next step.
        self._unsent: deque[bytes] = deque()

    @property
    def connected(self) -> bool:
        """Whether there is an agent, as far as the last call could tell."""
        return self._socket is not None

    def open(self) -> bool:
        """Look for the agent's socket; whether it is there."""
        if not hasattr(socket, "AF_UNIX") or not os.path.exists(self._path):  # noqa: PTH110  (see default_socket)
            return False
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._socket.connect(self._path)
        except OSError:
            self.close()
        return self.connected

    def send(self, message: Mapping[str, object]) -> bool:
        """Whether nothing was lost: the message is sent, or waits for the next call."""
        if self._socket is None:
            return False
        self._unsent.append(json.dumps(message).encode())
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            # The agent is slow; it is still there.
            if len(self._unsent) <= _MOST_UNSENT:
                return True
            self._unsent.popleft()
            return False
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Leave the agent; what was not sent is forgotten."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._unsent.clear()
