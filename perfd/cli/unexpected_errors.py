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
    if os.environ.get(VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    ours = [at for at in traceback.extract_tb(error.__traceback__) if "perfd" in Path(at.filename).parts]
    where = ""
    if ours:
        path = Path(ours[-1].filename)
        name = path.relative_to(_PACKAGES) if path.is_relative_to(_PACKAGES) else path
        where = f" at {name}:{ours[-1].lineno}"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN_CHARS].rstrip(":. ")
    return f"Unexpected error{where} ({what}). Please report it with the traceback that {VARIABLE}=1 prints."
