"""One line on a terminal about what a command does at the moment."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Self, TextIO

from perfd.formatting import printable_text

SHOWN_AFTER_S = 1.0
"""Commands show what they do when it takes longer: who waits less long needs no explanation."""
_CLEAR_TO_END = "\x1b[K"
_WIDTH = 80
"""Characters of a terminal that does not say how many it has."""


class StatusLine:
    """A line on standard error, if that is a terminal; it is gone at the end of the `with`."""

    def __init__(self) -> None:
        self._screen = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self.shown = False
        """Whether the terminal has it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen is not None and self.shown:
            _write(self._screen, "")

    def show(self, text: str) -> None:
        """Replace what the line says; a text that is wider than the terminal is cut."""
        if self._screen is not None:
            self.shown = True
            # Of a text that wraps, only the last row could be replaced.
            _write(self._screen, printable_text(text)[: _width(self._screen) - 1])


def _write(screen: TextIO, text: str) -> None:
    screen.write(f"\r{text}{_CLEAR_TO_END}")
    screen.flush()


def _width(screen: TextIO) -> int:
    try:
        return os.get_terminal_size(screen.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH
