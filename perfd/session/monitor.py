"""The monitor process of a job: agent and aggregator, fed by `perfd run` through a pipe.

`perfd.session.supervisor` starts it, without a command line. Frames come in on standard input, text
for the user goes to standard output, and the log to standard error, a file in the results folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perfd import logs
from perfd.clock import SystemClock
from perfd.errors import PerfdError, WireError
from perfd.process_memory import tune_malloc
from perfd.session.channel import Frame, FrameKind, LineMerger, read_frames
from perfd.session.live_session import LiveSession
from perfd.session.supervisor import MonitorSettings
from perfd.session.text import fitted

log = logging.getLogger(__name__)


def main() -> int:
    """Monitor one job to its end; the exit code is 0 if there is a summary."""
    logs.configure("info")
    tune_malloc()
    # gRPC logs connections itself; what matters is logged by us.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Slurm signals every process of a job; we end after the job, when `perfd run` reports its end. A
        # handler instead of SIG_IGN, which the tools that we start would inherit.
        signal.signal(number, lambda *_: None)
    # Standard input becomes the log's; the frames keep a separate descriptor.
    with os.fdopen(os.dup(0), "rb") as pipe:
        try:
            watch(read_frames(pipe))
        except PerfdError as error:
            log.error("The job is not monitored.", extra={"reason": str(error)})  # noqa: TRY400  (a sentence)
            return 1
    return 0


def watch(frames: Iterator[Frame]) -> None:
    """Monitor a job from its settings to its summary."""
    settings = MonitorSettings(**json.loads(_expect(frames, FrameKind.SETTINGS).payload))
    started = _expect(frames, FrameKind.STARTED)
    with tempfile.TemporaryDirectory(prefix="perfd-run-") as scratch:
        session = LiveSession(
            settings,
            root_pid=int(started.payload),
            started_unix_ns=started.unix_ns,
            scratch=Path(scratch),
            clock=SystemClock(),
            say=_say,
        )
        try:
            session.start()
            _say(session.finish(*_follow(frames, session)))
        finally:
            session.stop()


def _follow(frames: Iterator[Frame], session: LiveSession) -> tuple[int | None, int, int]:
    """Feed the session to the job's end.

    Returns the exit code, None if unknown, the number of dropped bytes, and the end in Unix nanoseconds.
    """
    merger = LineMerger()
    dropped = 0
    code = ended_unix_ns = None
    for frame in frames:
        match frame.kind:
            case FrameKind.STDOUT | FrameKind.STDERR:
                session.log(merger.add(frame.kind, frame.payload), frame.unix_ns)
            case FrameKind.DROPPED:
                dropped += int(frame.payload)
            case FrameKind.ENDED:
                code, ended_unix_ns = int(frame.payload), frame.unix_ns
                break
            case _:
                continue
    if ended_unix_ns is None:
        ended_unix_ns = SystemClock().unix_ns()
    session.log(merger.rest(), ended_unix_ns)
    return code, dropped, ended_unix_ns


def _expect(frames: Iterator[Frame], kind: FrameKind) -> Frame:
    frame = next(frames, None)
    if frame is None or frame.kind is not kind:
        raise WireError(f"The first frame from perfd run is not {kind.name.lower()}.")
    return frame


def _say(text: str) -> None:
    # The reader of our output may be gone; monitoring continues.
    with contextlib.suppress(OSError), os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        out.write(fitted(f"{text}\n", out))


if __name__ == "__main__":
    sys.exit(main())
