"""The terminal, file or pipe that results are shown on."""

from __future__ import annotations

from rich.console import Console

_FILE_WIDTH = 160
"""Characters of a line in a file or pipe, whatever the terminal of its reader has."""


class Terminal(Console):
    """A console that shows texts as they are, without highlights, and plain ones outside a terminal.

    Its reader may leave, as `head` does, without an exit code that means something else.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False)
        if not self.is_terminal:
            self.width = _FILE_WIDTH

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`, as `print` does."""
        raise BrokenPipeError
