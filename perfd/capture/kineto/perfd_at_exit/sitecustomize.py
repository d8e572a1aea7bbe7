"""Keeps a process that ends during a capture with Kineto alive until the window is over.

PyTorch does not unregister the callbacks of an on-demand trace when the process ends: a process that ends
within a window calls, in the destructor of its profiler's state, into a libkineto that is already destroyed,
and dies of SIGSEGV (docs/captures.md, "When the job ends during a capture").

Python imports a module of this name at its start, from the first folder that has one; `perfd run --kineto`
puts this folder first in `PYTHONPATH`. It needs the standard library of Python 3.8 or later, and does
nothing until the process ends. Then it waits, at most `_LONGEST_S`, while perfd's file
`perfd-kineto-until-PID`, which has the end time, exists.
"""  # noqa: INP001  (Python finds it by its folder)

import atexit
import contextlib
import os
import sys
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_LONGEST_S = 330.0
"""The longest capture, and time to write it."""
_POLL_S = 0.05
"""How often the trace file is looked for while the process ends. Chosen."""
_SETTLE_S = 1.0
"""libkineto unregisters its callbacks within milliseconds of the file; busy machines take longer."""


def _wait() -> None:
    if "torch" not in sys.modules:
        return
    place = os.environ.get("KINETO_ONDEMAND_TRACE_DIR") or "/tmp"  # noqa: S108  (as libkineto)
    mark = Path(place, f"perfd-kineto-until-{os.getpid()}")
    # Without a capture there is no such file. perfd removes it as soon as it has the trace.
    with contextlib.suppress(OSError, ValueError):
        if mark.lstat().st_uid not in (0, os.geteuid()):
            return
        until_s = min(float(mark.read_text()), time.time() + _LONGEST_S)
        while time.time() < until_s and mark.exists():
            time.sleep(_POLL_S)
        # The trace is on disk before libkineto has let go of the process.
        time.sleep(_SETTLE_S)
        mark.unlink()


def _run_the_one_that_this_hides() -> None:
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# First: what is registered first runs last, after everything that the job does at its end.
atexit.register(_wait)
_run_the_one_that_this_hides()
