"""What a log says when something breaks, whatever the trainer: exceptions, memory, NCCL."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.formats import Job
from perfd_collectors.training_log.lines import Line

_TRACEBACK = "Traceback (most recent call last):"
_WATCHDOG = re.compile(
    r"(?:\[Rank (\d+)\] )?Watchdog caught collective operation timeout: "
    r".*?OpType=(\w+).*?ran for (\d+) milliseconds",
    re.ASCII,
)
_MAX_TRACEBACK_LINES = 300


class FailureParser:
    """One log's exceptions and warnings of NCCL. A traceback is told by its last line."""

    keywords: Sequence[bytes] = (
        b"Traceback (most recent",
        b"CUDA out of memory",
        b"OutOfMemoryError",
        b"Watchdog caught",
        b"NCCL WARN",
    )

    def __init__(self, job: Job) -> None:
        self._out = job.out
        self._steps = job.steps
        self._open: tuple[str, int | None] | None = None
        self._lines = 0

    @property
    def hungry(self) -> bool:
        """Inside a traceback."""
        return self._open is not None

    def parse(self, line: Line) -> bool:
        """Take in a whole line."""
        if not line.complete:
            return False
        text = line.text.rstrip()
        if _TRACEBACK in text:
            self._end_traceback()
            self._open, self._lines = (text[text.index(_TRACEBACK) :], line.rank), 0
            return True
        if self._open is not None and self._in_traceback(text, line.rank):
            return True
        return self._message(text, line.rank)

    def finish(self) -> None:
        """Tell of a traceback whose end the log does not have."""
        self._end_traceback()

    def _in_traceback(self, text: str, rank: int | None) -> bool:
        opened = self._open
        self._lines += 1
        if opened is None or self._lines > _MAX_TRACEBACK_LINES:
            self._end_traceback()
            return False
        if rank != opened[1]:
            # Another rank's line in between.
            return False
        if text and not text[0].isspace():
            self._open = None
            self._error(text, rank)
        return True

    def _end_traceback(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            self._error(*opened)

    def _message(self, text: str, rank: int | None) -> bool:
        if match := _WATCHDOG.search(text):
            named = int(match[1]) if match[1] else rank
            message = f"NCCL's watchdog: {match[2]} ran for {int(match[3]) / 1e3:g} s."
            self._out.event(
                EventKind.LOG_ERROR,
                message,
                step=self._steps.last_step,
                rank=named,
                values={"ran_s": int(match[3]) / 1e3},
            )
        elif "NCCL WARN" in text:
            message = text[text.index("NCCL WARN") :]
            self._out.event(EventKind.NCCL_WARNING, message, step=self._steps.last_step, rank=rank)
        elif "CUDA out of memory" in text or "OutOfMemoryError" in text:
            self._error(text, rank)
        else:
            return False
        return True

    def _error(self, message: str, rank: int | None) -> None:
        self._out.event(EventKind.LOG_ERROR, message, step=self._steps.last_step, rank=rank)
