"""A program of others, with few files: `python -m perfd.sandbox.confined_program FILES PROGRAM...`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfd.sandbox.file_confinement import confine_to_files

_FOUND_BESIDE = ("bin", "target-linux-", "host-linux-")
"""Folders of programs whose other files are beside them, as those of Nsight Systems are."""
_SHARED_INSTALLATIONS = Path("/opt/nvidia")
"""Where wrappers in /usr/local/cuda find the real program."""


def confined_command(command: Sequence[str], *, read: Iterable[Path], write: Iterable[Path]) -> Sequence[str]:
    """The command that runs a program which reads these files and its own, and writes in these folders.

    It has no network, no other process, and temporary files only in the first folder of `write`. Where the
    kernel cannot do that, it runs with the rights that it would have had.
    """
    folders = [str(folder.resolve()) for folder in write]
    program = shutil.which(command[0]) or command[0]
    real = Path(program).resolve()
    beside = real.parent.name.startswith(_FOUND_BESIDE)
    files = {
        "read": [str(path.resolve()) for path in read],
        "write": folders,
        "programs": [program, str(real.parent.parent if beside else real), str(_SHARED_INSTALLATIONS)],
    }
    own = [sys.executable, "-P", "-m", "perfd.sandbox.confined_program"]
    return [*own, json.dumps(files), program, *command[1:]]


def main() -> None:
    """Become the program; raises `OSError` if it cannot be started."""
    files, command = json.loads(sys.argv[1]), sys.argv[2:]
    read, write, programs = ([Path(name) for name in files[key]] for key in ("read", "write", "programs"))
    # What it keeps for itself would otherwise be in a folder that it may not write.
    environment = {**os.environ, "HOME": str(write[0]), "TMPDIR": str(write[0])}
    # Scripts discard output by writing it to /dev/null.
    confine_to_files(read, [*write, Path(os.devnull)], programs=programs, temporary=False)
    os.execve(command[0], command, environment)  # noqa: S606  (it has no shell)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
