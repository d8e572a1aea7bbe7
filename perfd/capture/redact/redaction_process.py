"""A process that reads one file and writes its harmless copy: `python -m ... SOURCE COPY`.

What a job wrote is parsed here, so that whoever takes over the parser has that file and the copy, and no
right of the agent's beside them.
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


def main() -> int:
    """Write the copy; a reason on standard error and 1 if that is not possible."""
    source, copy = Path(sys.argv[1]), Path(sys.argv[2])
    # A copy that is not waited for any more must not go on.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM, encoding="ascii")
    confine_to_files([source], [copy], temporary=False)
    try:
        redact(source, copy)
    except CaptureError as error:
        sys.stderr.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
