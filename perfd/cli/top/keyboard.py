"""Single keys and clicks from a terminal, without Enter."""

from __future__ import annotations

import contextlib
import os
import re
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
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
_REPORT_MOUSE, _NO_MOUSE = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"
"""Presses, in the form that has no limit on columns (xterm, SGR)."""
_CLICK = re.compile(rb"\x1b\[<(\d{1,3});(\d{1,5});(\d{1,5})M")
_BUTTONS = {0: "click", 64: "wheel up", 65: "wheel down"}
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
    _write(_REPORT_MOUSE)
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
        _write(_NO_MOUSE)
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved)


def first_key(typed: bytes) -> tuple[str | None, int]:
    """The name of the first key that a terminal sent, and how many bytes it took; None for no key of ours.

    A click is `click COLUMN LINE`, both from 0. Nothing at all is the terminal's end, and leaves like `q`.
    """
    if not typed:
        return "q", 0
    if typed.startswith((b"\x1b[", b"\x1bO")):
        # CSI and SS3: parameters, then one letter or `~` (ECMA-48, 5.4).
        end = next((at for at in range(2, len(typed)) if typed[at] >= 0x40), len(typed) - 1) + 1
        return _NAMES.get(typed[:end]) or _click(typed[:end]), end
    if found := _NAMES.get(typed[:1]):
        return found, 1
    length = next((size for size in range(1, 5) if _text(typed[:size])), 1)
    return _text(typed[:length]), length


def _text(typed: bytes) -> str | None:
    """The character that is all of it."""
    with contextlib.suppress(UnicodeDecodeError):
        text = typed.decode()
        return text if len(text) == 1 and text.isprintable() else None
    return None


def _click(typed: bytes) -> str | None:
    found = _CLICK.fullmatch(typed)
    kind = _BUTTONS.get(int(found[1])) if found else None
    return f"click {int(found[2]) - 1} {int(found[3]) - 1}" if found and kind == "click" else kind


def _write(text: str) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(text)
        sys.stdout.flush()


def _only_wait(seconds: float) -> None:
    time.sleep(seconds)
