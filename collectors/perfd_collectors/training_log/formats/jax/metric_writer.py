"""Metrics that a JAX program logs with its step in brackets: CLU (flax's examples, T5X), big_vision."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import number
from perfd_collectors.training_log.step_fields import StepFields, add_step
from perfd_collectors.training_log.step_order import ProgressSource

_LINE = re.compile(
    r"I[0-9]{4,8} [0-9:.]{8,15} {1,8}[0-9]{1,20} \w{1,60}\.py:[0-9]{1,6}\] "
    r"\[([0-9]{1,15})\] (?:collection=(\S{1,120}) )?(?=[\w/.-]{1,120} ?= ?\S)"
)
_PAIR = re.compile(r"(?:^|, )([\w/.()-]{1,120}) ?= ?([^\s,]{1,40})(?=,|\s*$)")


_MOST_LINES = 200
"""Most lines of a step, which become one record, since a log might repeat it forever. Chosen."""


class MetricWriterParser(FormatParser):
    """One log. A step's metrics may come in several lines, which are one record."""

    keywords: Sequence[bytes] = (b"] [", b"\x1b[35m[")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._step: int | None = None
        self._found = StepFields()
        self._lines = 0

    def parse(self, line: LogLine) -> bool:
        said = _LINE.match(line.text)
        if said is None:
            return False
        self._lines += 1
        if int(said[1]) != self._step or self._lines > _MOST_LINES:
            self.flush()
            self._step, self._lines = int(said[1]), 1
        if said[2] and "eval" in said[2]:
            self._found.evaluates = True
            return True
        for name, figure in _PAIR.findall(line.text[said.end() :]):
            value = number(figure)
            if value is not None:
                self._found.add(name.removeprefix("timing/"), value)
        return True

    def flush(self) -> None:
        """Emit the step whose lines were read; a line of its that comes later is left out."""
        step, found = self._step, self._found
        self._step, self._found = None, StepFields()
        if step is None:
            return
        if found.losses or found.timed:
            self._out.describe_framework("clu")
            add_step(self._steps, self._out.job, step, found, None, family=ProgressSource.TRAINER)
        if found.evaluates:
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=step)
