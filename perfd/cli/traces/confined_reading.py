"""Rights of a command that reads files which others may have written."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from perfd.sandbox.file_confinement import confine_to_files


def confinement(
    args: argparse.Namespace, read: Iterable[Path], written: Path | None = None
) -> Callable[[], object]:
    """What takes the process's rights but those to read these files, and to write the folder of `written`.

    It does nothing where `main` was called with arguments, in a process that has more to do.
    """
    if not args.own_process:
        return lambda: None
    folders = [] if written is None else [written.absolute().parent]
    return partial(confine_to_files, list(read), folders)
