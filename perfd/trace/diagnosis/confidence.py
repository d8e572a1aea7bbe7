"""How sure findings about traces are: a level for each kind of evidence, less what could not be seen.

The levels order findings; they are judgements, and no probabilities that were measured. docs/traces.md has
the same table.
"""

from __future__ import annotations

from perfd.trace.diagnosis.trace_analysis import TraceAnalysis

CONFIRMED = 0.9
"""Two independent records agree: durations on several ranks, or launches held against kernels."""
MEASURED = 0.8
"""Measured in one way, by the profiler's own records."""
MODELLED = 0.6
"""From shapes and peaks; nothing was measured."""
UNEXPLAINED = 0.4
"""Its size is measured, and its cause is what usually lies behind it."""


def seen(level: float, analysis: TraceAnalysis) -> float:
    """The level, less the share of ranks that lost records: nothing is known of those."""
    return round(level * len(analysis.complete) / len(analysis.ranks), 2)
