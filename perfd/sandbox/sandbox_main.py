"""The side of the sandbox: `python -m perfd.sandbox.sandbox_main MODULE:FUNCTION DESCRIPTOR`."""

from __future__ import annotations

import importlib
import socket
import sys

from perfd.errors import PerfdError
from perfd.sandbox.confinement import confine
from perfd.sandbox.message_channel import ChannelClosedError, receive, send
from perfd.sandbox.sandbox_client import ANSWER, FILTERED, REFUSAL, UNFILTERED, Reader

_MOST_CHARS = 1000
"""Of a reason."""


def main() -> int:
    """Answer until the other side ends."""
    module, _, function = sys.argv[1].partition(":")
    read: Reader = getattr(importlib.import_module(module), function)()
    channel = socket.socket(fileno=int(sys.argv[2]))
    send(channel, FILTERED if confine() else UNFILTERED)
    while True:
        try:
            message = receive(channel)
        except ChannelClosedError:
            return 0
        send(channel, _answer(read, message))


def _answer(read: Reader, message: bytes) -> bytes:
    try:
        return ANSWER + read(message)
    except Exception as error:  # noqa: BLE001  (the boundary between two processes)
        expected = isinstance(error, (PerfdError, OSError, ValueError)) and str(error)
        reason = str(error) if expected else f"unexpected {type(error).__name__}: {error}".removesuffix(": ")
        return REFUSAL + reason[:_MOST_CHARS].encode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
