"""A process that reads one file and writes a redacted copy: `python -m ... SOURCE COPY`.

Files that a job wrote are parsed here, so an exploit of the parser can access only that file and the copy,
and gets none of the agent's rights.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress
from pathlib import Path

from perfd.capture.redact.redaction import redact
from perfd.errors import CaptureError
from perfd.sandbox.file_confinement import confine_to_files

_PR_SET_PDEATHSIG = 1
_FIRST_VICTIM = "1000"
EXIT_REASON = 3
"""The exit code if standard error has the reason. It has a traceback if Python itself ends with 1."""


def main() -> int:
    """Write the copy and return 0; on failure, print the reason to stderr and return `EXIT_REASON`."""
    source, copy = Path(sys.argv[1]), Path(sys.argv[2])
    # End with the parent, since then the copy has no use.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM, encoding="ascii")
    try:
        confine_to_files([source], [copy], temporary=False)
        redact(source, copy)
    except CaptureError as error:
        sys.stderr.write(str(error))
    except Exception as error:  # noqa: BLE001  (the boundary between two processes)
        # Its text may be content of the file.
        sys.stderr.write(f"{source} cannot be redacted: unexpected content ({type(error).__name__}).")
    else:
        return 0
    return EXIT_REASON


if __name__ == "__main__":
    sys.exit(main())
