"""Measured times of a module's operations, from a trace of JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfd.trace.model.rank_trace import HloOperations, RankTrace
from perfd.trace.roofline.hlo_cost import HloCost

_ALL_RUNS_RATIO = 0.99
"""Share of an operation's runs that must be recorded, for its time to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperations:
    """Seconds by operation, over all its runs in a step of one device."""

    times_s: Mapping[str, float] = field(default_factory=dict)
    step_s: float | None = None
    """From the first to the last of the module's operations in a step, other modules between them left out;
    None if it was not measured."""
    others_s: Mapping[str, float] = field(default_factory=dict)
    """The same of the step's other modules."""
    known_ratio: float | None = None
    """The share of the device's time in operations of this module."""


def measured_operations(trace: RankTrace, module: str, costs: Sequence[HloCost]) -> MeasuredOperations:
    """What a device's trace says of a module; operations of other modules are left out.

    Modules number their operations each by itself, so names alone identify them only in traces without
    modules.

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
    mine = module if module in hlo.modules else ""
    joined = [
        at
        for at, name in enumerate(hlo.names)
        if name in runs and kernels[at] and hlo.modules[at] in {mine, ""}
    ]
    if not joined:
        return MeasuredOperations()
    repeats = sorted((float(kernels[at]) / runs[hlo.names[at]], int(kernels[at])) for at in joined)
    # The median over kernels: of an operation that mostly ran within CUDA graphs few are recorded.
    middle = np.searchsorted(np.cumsum([count for _, count in repeats]), sum(kernels[joined]) / 2)
    steps = max(1.0, repeats[int(middle)][0])
    # Runs within a CUDA graph are recorded under the graph's name: the time of the others is not all.
    whole = [at for at in joined if kernels[at] >= _ALL_RUNS_RATIO * runs[hlo.names[at]] * steps]
    spans_ns = _spans_by_module(trace, hlo)
    return MeasuredOperations(
        times_s={hlo.names[at]: float(total_ns[at]) / 1e9 / steps for at in whole},
        step_s=spans_ns.pop(mine) / 1e9 / steps,
        others_s={name: ns / 1e9 / steps for name, ns in spans_ns.items()},
        known_ratio=float(total_ns[joined].sum()) / (int(durations.sum()) or 1),
    )


def _spans_by_module(trace: RankTrace, hlo: HloOperations) -> dict[str, int]:
    """Nanoseconds from the beginning of each turn of a module to its end; a turn ends with another's.

    What the trace gives to no module, as copies, is of the turn in which it is.
    """
    names = [name for name in dict.fromkeys(hlo.modules) if name] or [""]
    number = np.array([names.index(name) if name in names else -1 for name in hlo.modules], dtype=np.int64)
    of = np.where(hlo.name >= 0, number[hlo.name], -1)
    known = np.flatnonzero(of >= 0)
    first = known[np.append(True, of[known][1:] != of[known][:-1])]
    # The first turn has what precedes it.
    begins = np.append(0, first[1:])
    starts_ns = trace.operations.start_ns[begins]
    ends_ns = np.maximum.reduceat(trace.operations.end_ns, begins)
    # Turns of two modules may overlap at their edges, on two streams.
    ends_ns = np.minimum(ends_ns, np.append(starts_ns[1:], ends_ns[-1]))
    if len(names) == 1:
        return {names[0]: int(trace.operations.end_ns.max() - trace.operations.start_ns[0])}
    spans: dict[str, int] = {}
    for at, span in zip(of[first].tolist(), (ends_ns - starts_ns).tolist(), strict=True):
        spans[names[at]] = spans.get(names[at], 0) + span
    return spans
