"""What NCCL says of itself in a training log (NCCL_DEBUG=INFO): odd transports, mixed versions, as events."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import LogContext
from perfd_collectors.training_log.line_buffer import LogLine


class NcclLineParser:
    """The lines of all ranks, in one log or several. Warnings are `FailureParser`'s."""

    keywords: Sequence[bytes] = (b"NCCL INFO", b"NCCL version")

    def __init__(self, job: LogContext) -> None:
        self._out = job.out
        self._steps = job.steps
        self._log = job.nccl

    @property
    def hungry(self) -> bool:
        """Each line stands for itself."""
        return False

    def parse(self, line: LogLine) -> bool:
        """Take in a whole line."""
        if not line.complete or not any(word in line.text for word in ("NCCL INFO", "NCCL version")):
            return False
        for remark in self._log.feed(line.text.rstrip()):
            self._out.event(
                EventKind.NCCL_WARNING, remark.message, step=self._steps.last_step, rank=line.rank
            )
        return True

    def settle(self) -> None:
        """Nothing is put out early."""

    def finish(self) -> None:
        """Nothing is held back."""
