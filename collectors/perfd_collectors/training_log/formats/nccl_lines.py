"""NCCL's lines in a training log (NCCL_DEBUG=INFO): slow transports and mixed versions, as events."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine


class NcclLineParser(FormatParser):
    """Parses NCCL's lines of all ranks, in one or several logs. Warnings are parsed by `FailureParser`."""

    takes_damaged = True
    keywords: Sequence[bytes] = (b"NCCL INFO", b"NCCL version")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._log = job.nccl

    def parse(self, line: LogLine) -> bool:
        if not any(word in line.text for word in ("NCCL INFO", "NCCL version")):
            return False
        for remark in self._log.feed(line.text.rstrip()):
            self._out.event(
                EventKind.NCCL_WARNING, remark.message, step=self._steps.last_step, rank=line.rank
            )
        return True
