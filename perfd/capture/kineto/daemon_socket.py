"""The socket that libkineto polls, and the thread that answers."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from perfd.capture.kineto import kineto_protocol
from perfd.capture.kineto.client_registry import ClientRegistry, ConfigDelivery, Key, KinetoClient
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.file_access import bind_socket, remove_socket

log = logging.getLogger(__name__)

NAME = "dynolog"
"""libkineto's fixed name; it cannot be configured."""
CLIENT_PREFIX = "dynoconfigclient"
_CREDENTIALS = struct.Struct("iII")
_SWEEP_INTERVAL_S = 60.0
"""How often clients that have ended are forgotten. Chosen."""
_MAX_DIRECTORY_BYTES = 106 - len(f"/{CLIENT_PREFIX}") - 36
"""A socket's path has 106 bytes at most, and clients put a UUID into theirs."""

_Address: TypeAlias = str | bytes


class KinetoEndpoint:
    """Answers the polls of this node's PyTorch processes, from `start` to `stop`. Thread-safe.

    By default the name is abstract, and belongs to a network namespace; with `directory` it is a file
    in it, which containers can share (`KINETO_IPC_SOCKET_DIR`).
    """

    def __init__(self, directory: Path | None, clock: Clock, *, name: str = NAME) -> None:
        self._directory = directory
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._registry = ClientRegistry()
        self._problem = "The Kineto endpoint was not started."
        self._socket: socket.socket | None = None
        self._wake: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._serve, name="perfd-kineto", daemon=True)

    @property
    def problem(self) -> str:
        """Why polls are not answered; otherwise empty."""
        return self._problem

    def start(self) -> None:
        """Bind the name and start answering. If it is taken, that is a `problem`, not an exception."""
        try:
            self._socket = self._bind()
        except CaptureError as error:
            self._problem = str(error)
            log.warning("Captures with Kineto are not possible.", extra={"reason": self._problem})
            return
        self._problem = ""
        self._wake = os.pipe()
        self._thread.start()

    def stop(self) -> None:
        """Release the name; may be called twice, and without `start`."""
        if self._wake is not None:
            reader, writer = self._wake
            os.write(writer, b"\0")
            self._thread.join()
            os.close(reader)
            os.close(writer)
            self._wake = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if self._directory is not None:
                remove_socket(self._directory / self._name)
        self._problem = "The Kineto endpoint was stopped."

    def clients(self) -> Sequence[KinetoClient]:
        """See `ClientRegistry.clients`; from any thread."""
        with self._lock:
            return self._registry.clients(self._clock.monotonic_s())

    def order(self, key: Key, text: str, *, before_s: float) -> None:
        """Give a client this configuration when it polls, but not after `before_s` of monotonic time."""
        with self._lock:
            self._registry.order(key, text, before_s=before_s)

    def delivery(self, key: Key) -> ConfigDelivery:
        """The state of a client's order."""
        with self._lock:
            return self._registry.delivery(key)

    def withdraw_all(self) -> None:
        """See `ClientRegistry.withdraw_all`; from any thread."""
        with self._lock:
            self._registry.withdraw_all()

    def _bind(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            server.setblocking(False)
            # The kernel then reports the sender of a datagram, by a pid in our namespace.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            if self._directory is None:
                server.bind(abstract(self._name))
            else:
                self._bind_file(server, self._directory / self._name)
        except OSError as error:
            server.close()
            if error.errno == errno.EADDRINUSE:
                raise CaptureError(_taken(self._directory, self._name)) from error
            where = _where(self._directory, self._name)
            raise CaptureError(f"Cannot answer libkineto at {where}: {error.strerror or error}.") from error
        return server

    def _bind_file(self, server: socket.socket, path: Path) -> None:
        if len(os.fsencode(path.parent)) > _MAX_DIRECTORY_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"more than {_MAX_DIRECTORY_BYTES} bytes for its folder")
        if listened_to(path):
            raise OSError(errno.EADDRINUSE, "it is taken")
        remove_socket(path)  # Of a daemon that was killed.
        # Clients of other users must be able to write, as to dynolog's own.
        bind_socket(server, path, 0o666, create_folder=True)

    def _serve(self) -> None:
        server, wake = self._socket, self._wake
        if server is None or wake is None:
            return
        next_sweep_s = self._clock.monotonic_s()
        while True:
            readable, _, _ = select.select([server.fileno(), wake[0]], [], [], _SWEEP_INTERVAL_S)
            if wake[0] in readable:
                return
            if server.fileno() in readable:
                self._answer(server)
            if self._clock.monotonic_s() >= next_sweep_s:
                next_sweep_s = self._clock.monotonic_s() + _SWEEP_INTERVAL_S
                self._sweep()

    def _answer(self, server: socket.socket) -> None:
        try:
            data, ancillary, flags, sender = server.recvmsg(
                kineto_protocol.MAX_FRAME_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
        except OSError:
            return  # Another wake-up comes with the next datagram.
        message = None if flags & socket.MSG_TRUNC else kineto_protocol.decode(data)
        if message is None or not sender:
            return
        if isinstance(message, kineto_protocol.ContextRequest):
            with self._lock:
                count = len(self._registry.clients(self._clock.monotonic_s()))
            self._send(server, kineto_protocol.context_reply(count), sender)
            return
        host_pid = _sender_pid(ancillary)
        with self._lock:
            text = self._registry.poll(message, host_pid, self._clock.monotonic_s())
        if not self._send(server, kineto_protocol.poll_reply(text), sender) and text:
            with self._lock:
                self._registry.undelivered((host_pid, message.pids[0]))

    def _send(self, server: socket.socket, reply: bytes, to: _Address) -> bool:
        try:
            server.sendto(reply, to)
        except OSError:
            return False  # The client is gone, or does not read; it may poll again.
        return True

    def _sweep(self) -> None:
        """Delete the sockets that clients left behind when they ended."""
        if self._directory is None:
            return
        with contextlib.suppress(OSError):
            for path in self._directory.iterdir():
                if path.name.startswith(CLIENT_PREFIX) and is_socket(path) and not listened_to(path):
                    remove_socket(path)


def abstract(name: str) -> bytes:
    """The address of libkineto's abstract sockets: both NULs are part of the name."""
    return b"\0" + name.encode() + b"\0"


def answered_by_others(directory: Path | None) -> str:
    """The program that answers libkineto there, and what to do; empty while the name is free."""
    address = abstract(NAME) if directory is None else directory / NAME
    return _taken(directory, NAME) if listened_to(address) else ""


def _taken(directory: Path | None, name: str) -> str:
    return (
        f"Another program answers libkineto at {_where(directory, name)} (dynolog, or another perfd agent);"
        " stop it, or set capture.kineto.socket_directory and KINETO_IPC_SOCKET_DIR of the job."
    )


def _where(directory: Path | None, name: str) -> str:
    return f"the abstract socket @{name}" if directory is None else str(directory)


def is_socket(path: Path) -> bool:
    """Whether there is a socket of that name, and not behind a link."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def listened_to(address: Path | bytes) -> bool:
    """Whether a process has this socket open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address if isinstance(address, bytes) else str(address))
        except OSError as error:
            # One that we may not write to belongs to another process, too.
            return error.errno in (errno.EACCES, errno.EPERM, errno.EPROTOTYPE)
        return True


def _sender_pid(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """The sender's pid in our namespace; 0 when it has none there."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid: int = _CREDENTIALS.unpack_from(data)[0]
            return pid
    return 0
