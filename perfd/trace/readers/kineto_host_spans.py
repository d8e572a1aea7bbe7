"""Collects what the host of a Kineto trace ran: operators, Python functions, modules, named ranges."""

from __future__ import annotations

import re

from perfd.trace.model.host_spans import HostSpans, SpanKind, SpanLabel, spans_of
from perfd.trace.model.trace_steps import PROFILER_STEP
from perfd.trace.readers.chrome_json import ChromeEvent
from perfd.trace.readers.detailed_events import detail_of, whole
from perfd.trace.readers.kineto_columns import Columns, Times

_KINDS = {
    spelling: kind
    for name, kind in (
        ("cpu_op", SpanKind.OPERATOR),
        ("operator", SpanKind.OPERATOR),
        ("python_function", SpanKind.FUNCTION),
        ("user_annotation", SpanKind.RANGE),
    )
    for spelling in (name, name.capitalize())
}
_MODULE = "nn.Module: "
_FRAME = re.compile(r"(?P<file>[^()]{1,512})\((?P<line>\d{1,9})\): (?P<function>.{1,512})")
_MOST_TEXT = 400
"""Characters that are kept of an operator's shapes."""


class HostSpanEvents:
    """Takes events as they come; asked for the spans when all are through."""

    def __init__(self) -> None:
        self._labels: dict[SpanLabel, int] = {}
        self.times = Times()
        self._columns = Columns("thread", "label", "sequence")
        self.has_functions = False

    def add(self, event: ChromeEvent, thread: int) -> None:
        """Take one event of any category; those of the GPU and of the profiler itself are left out."""
        kind = _KINDS.get(event.cat or "")
        if kind is None or event.ph != "X" or PROFILER_STEP.fullmatch(event.name):
            return
        args = detail_of(event)
        if kind is SpanKind.FUNCTION:
            self.has_functions = True
            if event.name.startswith(_MODULE):
                kind = SpanKind.MODULE
        shapes = dtypes = ""
        if kind is SpanKind.OPERATOR:
            shapes, dtypes = _text(args.input_dims), _text(args.input_types)
        label = SpanLabel(kind, event.name, shapes, dtypes)
        sequence = whole(args.sequence_number)
        self.times.append(event)
        self._columns.append(
            thread,
            self._labels.setdefault(label, len(self._labels)),
            -1 if sequence is None else max(-1, sequence),
        )

    def spans(self) -> HostSpans:
        """All spans with a valid time."""
        start, end, valid = self.times.ns()
        columns = self._columns.arrays() | {"start_ns": start, "end_ns": end}
        return spans_of({name: column[valid] for name, column in columns.items()}, list(self._labels))


def code_line(name: str) -> tuple[str, int, str] | None:
    """File, line and function of a Python function's name; None for one that is built in."""
    found = _FRAME.fullmatch(name)
    return (found["file"], int(found["line"]), found["function"]) if found else None


def _text(value: object) -> str:
    return "" if value in (None, [], "") else str(value)[:_MOST_TEXT]
