"""Single keys from a terminal, without Enter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
}
Wait = Callable[[float], str | None]


@contextlib.contextmanager
def keys() -> Iterator[Wait]:
    """A function that waits so many seconds at most, and returns the key that was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield _only_wait
        return
    terminal = sys.stdin.fileno()
    saved = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    typed = bytearray()

    def wait(seconds: float) -> str | None:
        if not typed:
            ready, _, _ = select.select([terminal], [], [], seconds)
            if not ready:
                return None
            typed.extend(os.read(terminal, 64))
        key, length = first_key(bytes(typed))
        del typed[:length]
        return key

    try:
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved)


def first_key(typed: bytes) -> tuple[str | None, int]:
    """The name of the first key that a terminal sent, and how many bytes it took; None for no key of ours.

    Nothing at all is the terminal's end, and leaves like `q`.
    """
    if not typed:
        return "q", 0
    if typed.startswith((b"\x1b[", b"\x1bO")):
        # CSI and SS3: parameters, then one letter or `~` (ECMA-48, 5.4).
        end = next((at for at in range(2, len(typed)) if typed[at] >= 0x40), len(typed) - 1) + 1
        return _NAMES.get(typed[:end]), end
    found = _NAMES.get(typed[:1])
    return found or typed[:1].decode("ascii", "ignore") or None, 1


def _only_wait(seconds: float) -> None:
    time.sleep(seconds)
