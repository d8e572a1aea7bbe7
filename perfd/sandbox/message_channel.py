"""Messages of bytes over a socket, each with its length before it."""

from __future__ import annotations

import socket
import struct
import time

MAX_BYTES = 128 << 20
"""Of a message: far above what is sent. It bounds what a reader that was taken over can make of us."""
_LENGTH = struct.Struct("=I")


class ChannelClosedError(Exception):
    """The other side is gone, was too slow, or sent what cannot be a message."""


def send(channel: socket.socket, message: bytes) -> None:
    """Send a message; raises `OSError`."""
    channel.sendall(_LENGTH.pack(len(message)))
    channel.sendall(message)


def receive(channel: socket.socket, within_s: float | None = None) -> bytes:
    """The next message; raises `ChannelClosedError`."""
    deadline_s = None if within_s is None else time.monotonic() + within_s
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, deadline_s))
    if length > MAX_BYTES:
        raise ChannelClosedError("a message is too long")
    return _exactly(channel, length, deadline_s)


def _exactly(channel: socket.socket, length: int, deadline_s: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        if deadline_s is not None:
            channel.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            piece = channel.recv(min(1 << 20, length - len(data)))
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not piece:
            raise ChannelClosedError("the other side has ended")
        data += piece
    return bytes(data)
