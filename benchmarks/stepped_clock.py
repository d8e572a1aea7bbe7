"""`python -m benchmarks.stepped_clock ...` is `perfd ...` with a wall clock that a file sets ahead or back.

`PERFD_CLOCK_OFFSET_FILE` names the file with the offset in seconds, which is read for each question.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_real_time_ns = time.time_ns
_file = Path(os.environ["PERFD_CLOCK_OFFSET_FILE"])


def _offset_ns() -> int:
    try:
        return int(float(_file.read_text(encoding="ascii")) * 1e9)
    except (OSError, ValueError):
        return 0


def _time_ns() -> int:
    return _real_time_ns() + _offset_ns()


if __name__ == "__main__":
    time.time_ns = _time_ns
    time.time = lambda: _time_ns() / 1e9
    from perfd.cli import main

    sys.exit(main())
