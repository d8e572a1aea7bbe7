"""Failures in any trainer's log: exceptions, out of memory, NCCL errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine

_TRACEBACK = "Traceback (most recent call last):"
_WATCHDOG = re.compile(
    r"(?:\[Rank (\d{1,9})\] )?Watchdog caught collective operation timeout: "
    r"(?:(?!OpType=)[^:])*OpType=(\w{1,64})\b(?:(?!OpType=)[^:])*?ran for (\d{1,15}) milliseconds",
    re.ASCII,
)
_MAX_TRACEBACK_LINES = 300
"""A longer traceback has lost its end."""
_MAX_TRACEBACKS = 64
"""Tracebacks of different ranks that may be open at a time; bounds memory."""


@dataclass(slots=True)
class _Traceback:
    message: str
    lines: int = 0


class FailureParser(FormatParser):
    """Exceptions and NCCL warnings in a log. A traceback is reported by its last line."""

    takes_damaged = True
    keywords: Sequence[bytes] = (
        b"Traceback (most recent",
        b"CUDA out of memory",
        b"Watchdog caught",
        b"NCCL WARN",
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._open: dict[int | None, _Traceback] = {}

    @property
    def in_block(self) -> bool:
        """Inside a traceback."""
        return bool(self._open)

    def parse(self, line: LogLine) -> bool:
        text = line.text.rstrip()
        if _TRACEBACK in text:
            self._end_traceback(line.rank)
            if len(self._open) < _MAX_TRACEBACKS:
                self._open[line.rank] = _Traceback(text[text.index(_TRACEBACK) :])
            return True
        return self._in_traceback(text, line.rank) or self._message(text, line.rank)

    def finish(self) -> None:
        """Report tracebacks whose end is missing."""
        for rank in list(self._open):
            self._end_traceback(rank)

    def _in_traceback(self, text: str, rank: int | None) -> bool:
        traceback = self._open.get(rank)
        if traceback is None:
            return False
        traceback.lines += 1
        if text and not text[0].isspace():
            traceback.message = text
        elif traceback.lines <= _MAX_TRACEBACK_LINES:
            return True
        self._end_traceback(rank)
        return True

    def _end_traceback(self, rank: int | None) -> None:
        traceback = self._open.pop(rank, None)
        if traceback is not None:
            self._error(traceback.message, rank)

    def _message(self, text: str, rank: int | None) -> bool:
        if match := _WATCHDOG.search(text):
            named = int(match[1]) if match[1] else rank
            message = f"NCCL watchdog timeout: {match[2]} ran for {int(match[3]) / 1e3:g} s."
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
        elif "CUDA out of memory" in text:
            self._error(text, rank)
        else:
            return False
        return True

    def _error(self, message: str, rank: int | None) -> None:
        self._out.event(EventKind.LOG_ERROR, message, step=self._steps.last_step, rank=rank)
