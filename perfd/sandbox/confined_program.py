"""Runs a third-party program with few files: `python -m perfd.sandbox.confined_program FILES PROGRAM...`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfd.sandbox.file_confinement import confine_to_files

_FOUND_BESIDE = ("bin", "target-linux-", "host-linux-")
"""Folder names of programs that keep their other files in the parent folder, as Nsight Systems does."""
_SHARED_INSTALLATIONS = Path("/opt/nvidia")
"""Location of the programs that wrappers in /usr/local/cuda start."""


def confined_command(command: Sequence[str], *, read: Iterable[Path], write: Iterable[Path]) -> Sequence[str]:
    """The command for a program that may only read these files and its own, and write in these folders.

    The program has no network and no access to other processes; temporary files go to the first folder in
    `write`. Limits that the kernel does not support are not applied.
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
    """Replace this process with the program; raises `OSError` if it cannot be started."""
    files, command = json.loads(sys.argv[1]), sys.argv[2:]
    read, write, programs = ([Path(name) for name in files[key]] for key in ("read", "write", "programs"))
    # Its settings and caches would otherwise be in folders that it cannot write to.
    environment = {**os.environ, "HOME": str(write[0]), "TMPDIR": str(write[0])}
    # Scripts discard output in /dev/null.
    confine_to_files(read, [*write, Path(os.devnull)], programs=programs, temporary=False)
    os.execve(command[0], command, environment)  # noqa: S606  (it has no shell)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
