"""The communication kernels of one rank, as what can be matched across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.kernel_classes import collective_operation
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import Collective


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What must be equal for operations to be of one kind."""

    group: str
    ranks: tuple[int, ...]
    operation: str
    barrier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One communication kernel in the window of one rank."""

    at: int
    """Its index among the rank's operations."""
    operation: str
    group: str
    group_ranks: tuple[int, ...]
    sequence: int | None
    start_ns: int
    """On the clock of the trace."""
    end_unix_ns: int | None
    """On the wall clock, if the trace has it."""
    duration_s: float
    """Unclipped: a match needs the whole."""
    clipped_s: float
    exposed_s: float
    """What of that neither compute nor memory operations cover."""
    barrier: bool
    """It moves no data: its time is latency and waiting."""
    size_bytes: int | None
    source: Collective | None

    @property
    def key(self) -> Key:
        """What kind of operation it is."""
        return Key(self.group, self.group_ranks, self.operation, self.barrier)


def instances(timeline: RankTimeline) -> list[Instance]:
    """The communication kernels in the window of a rank, in order of start."""
    trace, window = timeline.trace, timeline.window
    described = {one.operation: one for one in trace.collectives}
    operations = trace.operations
    inside = (operations.start_ns < window.end_ns) & (operations.end_ns > window.start_ns)
    chosen = np.flatnonzero((operations.kind == OperationKind.COMMUNICATION) & inside)
    starts = np.maximum(operations.start_ns[chosen], window.start_ns)
    ends = np.minimum(operations.end_ns[chosen], window.end_ns)
    exposed_ns = ends - starts - timeline.compute_memory.covered_many_ns(starts, ends)
    found = []
    for at, clipped, exposed in zip(
        chosen.tolist(), (ends - starts).tolist(), exposed_ns.tolist(), strict=True
    ):
        one = described.get(at)
        start, end = int(operations.start_ns[at]), int(operations.end_ns[at])
        name = one.name if one and one.name else collective_operation(trace.names[operations.name[at]])
        elements = one.elements if one else None
        found.append(
            Instance(
                at=at,
                operation=name,
                group=one.group if one else "",
                group_ranks=() if name == "sendrecv" or one is None else tuple(sorted(one.group_ranks)),
                sequence=one.sequence if one else None,
                start_ns=start,
                end_unix_ns=None if trace.epoch_ns is None else trace.epoch_ns + end,
                duration_s=(end - start) / 1e9,
                clipped_s=clipped / 1e9,
                exposed_s=exposed / 1e9,
                barrier=name == "barrier" or (elements is not None and elements <= 1 and name != "sendrecv"),
                size_bytes=one.size_bytes if one else None,
                source=one,
            )
        )
    return found
