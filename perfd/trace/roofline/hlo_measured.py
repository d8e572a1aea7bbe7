"""Measured times of a module's operations, from a trace of JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.roofline.hlo_cost import HloCost

_ALL_RUNS_RATIO = 0.99
"""Share of an operation's runs that must be recorded, for its time to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperations:
    """Seconds by operation, over all its runs in a step of one device."""

    times_s: Mapping[str, float] = field(default_factory=dict)
    step_s: float | None = None
    """The whole step; None if it was not measured."""
    known_ratio: float | None = None
    """The share of the device's time in operations of this module."""


def measured_operations(trace: RankTrace, costs: Sequence[HloCost]) -> MeasuredOperations:
    """What a device's trace says of a module; operations of other modules are left out.

    How many steps the trace has follows from how often operations ran: a step has `HloCost.count` runs, and
    most operations are one kernel.
    """
    hlo, operations = trace.hlo, trace.operations
    if hlo is None or not len(operations):
        return MeasuredOperations()
    runs = {cost.name: cost.count for cost in costs}
    known = hlo.name >= 0
    durations = operations.end_ns - operations.start_ns
    kernels = np.bincount(hlo.name[known], minlength=len(hlo.names))
    total_ns = np.bincount(hlo.name[known], weights=durations[known], minlength=len(hlo.names))
    joined = [at for at, name in enumerate(hlo.names) if name in runs and kernels[at]]
    if not joined:
        return MeasuredOperations()
    repeats = sorted((float(kernels[at]) / runs[hlo.names[at]], int(kernels[at])) for at in joined)
    # The median over kernels: of an operation that mostly ran within CUDA graphs few are recorded.
    middle = np.searchsorted(np.cumsum([count for _, count in repeats]), sum(kernels[joined]) / 2)
    steps = max(1.0, repeats[int(middle)][0])
    # Runs within a CUDA graph are recorded under the graph's name: the time of the others is not all.
    whole = [at for at in joined if kernels[at] >= _ALL_RUNS_RATIO * runs[hlo.names[at]] * steps]
    span_ns = int(operations.end_ns.max() - operations.start_ns[0])
    return MeasuredOperations(
        times_s={hlo.names[at]: float(total_ns[at]) / 1e9 / steps for at in whole},
        step_s=span_ns / 1e9 / steps,
        known_ratio=float(total_ns[joined].sum()) / (int(durations.sum()) or 1),
    )
