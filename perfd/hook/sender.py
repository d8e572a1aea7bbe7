"""The path of the agent's socket, and a sender that never blocks the job."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections import deque
from collections.abc import Mapping

SOCKET_VARIABLE = "PERFD_HOOK_SOCKET"
NODE_VARIABLE = "PERFD_HOOK_NODE"
"""Host name of that socket's machine, set by launchers whose environment may be passed to other nodes."""
_SYSTEM_SOCKET = "/run/perfd/hook.sock"
_MAX_UNSENT = 64
"""Messages kept while the agent is slow; further ones are dropped. Chosen, not measured."""


def default_socket(environ: Mapping[str, str] | None = None) -> str:
    """The path of the agent's socket: from the environment, else the system's, else the user's.

    A socket of another machine is ignored, as after `perfd run -- srun ...`, unless the path exists here, as
    in a container with another host name.
    """
    known = os.environ if environ is None else environ
    path = known.get(SOCKET_VARIABLE)
    here = known.get(NODE_VARIABLE) in {None, socket.gethostname()}
    if path and (here or os.path.exists(path)):  # noqa: PTH110  (pathlib costs the job an import)
        return path
    if os.path.isdir(os.path.dirname(_SYSTEM_SOCKET)):  # noqa: PTH112, PTH120  (pathlib costs the job an import)
        return _SYSTEM_SOCKET
    return f"{tempfile.gettempdir()}/perfd-hook-{os.getuid()}.sock"


class Sender:
    """A datagram socket to the agent; its errors never reach the job."""

    def __init__(self, path: str | None) -> None:
        self._path = path or default_socket()
        self._socket: socket.socket | None = None
        # The kernel queues only a few datagrams; the rest is kept here until the next step.
        self._unsent: deque[bytes] = deque()

    @property
    def connected(self) -> bool:
        """Whether the agent was reachable in the last call."""
        return self._socket is not None

    def open(self) -> bool:
        """Connect to the agent's socket; returns whether it exists."""
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
        """Send or queue a message; returns False when one was lost."""
        if self._socket is None:
            return False
        self._unsent.append(json.dumps(message).encode())
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            # The agent is slow, but alive.
            if len(self._unsent) <= _MAX_UNSENT:
                return True
            self._unsent.popleft()
            return False
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Disconnect, and drop unsent messages."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._unsent.clear()
