"""The terminal, file or pipe that results are shown on."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """A console whose reader may leave, as `head` does, without an exit code that means something else."""

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`, as `print` does."""
        raise BrokenPipeError
