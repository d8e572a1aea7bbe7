"""What is known of a job now, besides what the analysis is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd.aggregator.jobs import JobEnd
from perfd.analysis.steps import StepTimeChange
from perfd.model import JobOrigin

NO_ORIGIN = JobOrigin(job="")
"""Of a job whose launcher is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """What is known of a job now and is not in the arrays of the analysis."""

    labels: Mapping[str, str]
    """Those of all its series."""
    origin: JobOrigin = NO_ORIGIN
    het_groups: Mapping[str, int] = field(default_factory=dict)
    """Each node's group in a heterogeneous job."""
    attempt: int
    nodes: int
    ranks: int | None
    log_silent_s: float | None
    idle_s: float | None = None
    """How long nothing has shown it at work; None if no agent can see a log."""
    stepless_s: float | None = None
    """How long ago the job was started again without a step since."""
    first_step_s: float | None = None
    """How long its first step took from a start, the longest so far."""
    log_lines: int | None
    unrecognized_lines: int | None
    step_time_change: StepTimeChange | None
    alerts: Sequence[str] = ()
    """Names of the alerts of the job that fire, sorted."""
    exported: bool = True
    """Whether its numbers are series."""
    end: JobEnd | None = None
