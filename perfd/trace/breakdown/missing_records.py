"""Whether GPU records are missing: launches whose kernel never showed up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.trace.model.intervals import Coverage, Flags, Ns
from perfd.trace.model.operation_kinds import HostCallKind
from perfd.trace.model.rank_trace import HostCalls, RankTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """What a rank's host launched and its GPU's records do not show."""

    launches: int
    """Launches of kernels and graphs that ought to have a record."""
    lost: int

    @property
    def ratio(self) -> float:
        """Share of launches without a record."""
        return self.lost / self.launches if self.launches else 0.0


def losses(trace: RankTrace) -> MissingRecords | None:
    """Launches that should have a record and those without; None if unknown.

    Launches into a graph put nothing on the GPU. At the end of a capture the last launches are in flight,
    so only those up to the last one with a record count.
    """
    calls, known = trace.calls, trace.operations.correlation
    launches = (calls.kind == HostCallKind.LAUNCH) & (calls.correlation > 0) & ~_into_graphs(calls)
    if not launches.any() or not (known > 0).any():
        return None
    recorded = _are_among(calls.correlation[launches], known)
    if not recorded.any():
        copies = calls.correlation[(calls.kind == HostCallKind.COPY) & (calls.correlation > 0)]
        # Numbers that never match are not of one kind: nothing can be said. When copies do, kernels are gone.
        matched = bool(_are_among(copies, known).any())
        return MissingRecords(launches=len(recorded), lost=len(recorded)) if matched else None
    settled = recorded[: int(np.flatnonzero(recorded)[-1]) + 1]
    return MissingRecords(launches=len(settled), lost=int((~settled).sum()))


def _are_among(values: Ns, known: Ns) -> Flags:
    """Which values are among those known, of which there is one at least."""
    # Not numpy.isin, which loads numpy.ma for a plain question: that alone takes 10 ms.
    known = np.sort(known)
    found: Flags = known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
    return found


def _into_graphs(calls: HostCalls) -> Flags:
    """Which calls were made while their thread captured a graph."""
    into: Flags = np.zeros(len(calls), dtype=np.bool_)
    marks = (calls.kind == HostCallKind.CAPTURE_BEGIN) | (calls.kind == HostCallKind.CAPTURE_END)
    for thread in sorted(set(calls.thread[marks].tolist())):
        mine = calls.thread == thread
        begins = calls.start_ns[mine & (calls.kind == HostCallKind.CAPTURE_BEGIN)]
        ends = calls.end_ns[mine & (calls.kind == HostCallKind.CAPTURE_END)]
        # A capture without its end is still on; an end without its begin began before the trace.
        later = np.append(ends, np.iinfo(np.int64).max)
        graphs = Coverage(begins, later[np.searchsorted(ends, begins)])
        at = np.flatnonzero(mine)
        into[at] = graphs.covered_many_ns(calls.start_ns[at], calls.start_ns[at] + 1) > 0
    return into
