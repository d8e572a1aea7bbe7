"""What a user reads of an unexpected error: a mistake in perfd, or data of an unknown shape."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

VARIABLE = "PERFD_TRACEBACK"
"""If this environment variable is set, the traceback is printed too."""
_SHOWN_CHARS = 200
"""Of the error's own text."""
_PACKAGES = Path(__file__).parents[2]


def unexpected(error: Exception) -> str:
    """One sentence with its place and what to do; before it the traceback, if the variable is set."""
    _print_traceback(error)
    return (
        f"Unexpected error{_place(error)} ({_what(error)}). "
        f"Please report it with the traceback that {VARIABLE}=1 prints."
    )


def unreadable(url: str, error: Exception) -> str:
    """The same for what went wrong in reading the answers of an aggregator at `url`."""
    _print_traceback(error)
    return (
        f"The answer from {url} is not that of an aggregator of this version: {_what(error)}{_place(error)}. "
        f"Use the same version of perfd for both; {VARIABLE}=1 prints the traceback."
    )


def _print_traceback(error: Exception) -> None:
    if os.environ.get(VARIABLE):
        traceback.print_exception(error, file=sys.stderr)


def _place(error: Exception) -> str:
    """The innermost line of perfd where it was raised, as ` at FILE:LINE`; empty if there is none."""
    ours = [at for at in traceback.extract_tb(error.__traceback__) if "perfd" in Path(at.filename).parts]
    if not ours:
        return ""
    path = Path(ours[-1].filename)
    name = path.relative_to(_PACKAGES) if path.is_relative_to(_PACKAGES) else path
    return f" at {name}:{ours[-1].lineno}"


def _what(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN_CHARS].rstrip(":. ")
