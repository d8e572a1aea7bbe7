"""What the host's threads were in, as nested spans: operators, Python functions, modules, named ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from perfd.trace.model.intervals import Flags, Ns


class SpanKind(IntEnum):
    """What a span of the host is."""

    OPERATOR = 0
    """Of PyTorch, such as `aten::linear`."""
    FUNCTION = 1
    """Of Python: `train.py(12): step`."""
    MODULE = 2
    """A call of an `nn.Module`: `nn.Module: Linear_0`."""
    RANGE = 3
    """What the program named: `record_function`."""


@dataclass(frozen=True, slots=True)
class SpanLabel:
    """What spans of one kind, name and input have in common."""

    kind: SpanKind
    name: str
    shapes: str = ""
    """Of an operator's inputs, as PyTorch writes them: `[[32, 64], []]`; empty without `record_shapes`."""
    dtypes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpans:
    """n spans in order of thread and start, those around others first. Times are nanoseconds."""

    start_ns: Ns
    end_ns: Ns
    thread: Ns
    label: Ns
    """Index into `labels`."""
    sequence: Ns
    """Autograd's number, which an operator shares with its backward pass; -1 without one."""
    labels: Sequence[SpanLabel]
    parent: Ns
    """Index of the span around each, -1 for none."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def are(self, *kinds: SpanKind) -> Flags:
        """Which spans are of these kinds."""
        wanted = np.array([label.kind in kinds for label in self.labels], dtype=np.bool_)
        found: Flags = wanted[self.label] if len(self.labels) else np.zeros(0, dtype=np.bool_)
        return found

    def nearest(self, wanted: Flags) -> Ns:
        """For each span itself if it is wanted, else the innermost wanted span around it; -1 for none."""
        count = len(self)
        nowhere = count
        own = np.arange(count)
        jump = np.append(np.where(wanted, own, np.where(self.parent < 0, nowhere, self.parent)), nowhere)
        while True:
            # Each pass doubles how far it looks.
            further = jump[jump]
            if np.array_equal(further, jump):
                return np.where(jump[:count] == nowhere, -1, jump[:count])
            jump = further

    def innermost(self, threads: Ns, times_ns: Ns) -> Ns:
        """The innermost span of each thread at each time; -1 for none."""
        found = np.full(len(times_ns), -1, dtype=np.int64)
        for thread in sorted(set(threads.tolist())):
            low, high = np.searchsorted(self.thread, (thread, thread + 1)).tolist()
            mine = np.flatnonzero(threads == thread)
            at = np.searchsorted(self.start_ns[low:high], times_ns[mine], side="right") - 1 + low
            at[at < low] = -1
            while True:
                over = np.flatnonzero((at >= 0) & (self.end_ns[at] < times_ns[mine]))
                if not len(over):
                    break
                at[over] = self.parent[at[over]]
            found[mine] = at
        return found

    def around(self, at: int) -> Iterator[int]:
        """A span and those around it, from the inside out."""
        while at >= 0:
            yield at
            at = int(self.parent[at])


def spans_of(columns: Mapping[str, Ns], labels: Sequence[SpanLabel]) -> HostSpans:
    """Spans from unordered columns of equal length, named as in `HostSpans`."""
    order = np.lexsort((-columns["end_ns"], columns["start_ns"], columns["thread"]))
    sorted_columns = {name: column[order] for name, column in columns.items()}
    return HostSpans(labels=labels, parent=_parents(sorted_columns), **sorted_columns)


def _parents(columns: Mapping[str, Ns]) -> Ns:
    parents = np.full(len(columns["thread"]), -1, dtype=np.int64)
    open_: list[tuple[int, int]] = []
    current: int | None = None
    rows = zip(
        columns["thread"].tolist(), columns["start_ns"].tolist(), columns["end_ns"].tolist(), strict=True
    )
    for at, (thread, start_ns, end_ns) in enumerate(rows):
        if thread != current:
            current = thread
            open_.clear()
        while open_ and open_[-1][1] <= start_ns:
            open_.pop()
        if open_:
            parents[at] = open_[-1][0]
        open_.append((at, end_ns))
    return parents
