"""Whether unequal sequences make ranks wait for each other in turn."""

from __future__ import annotations

from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Finding, Kind, advice
from perfd.formatting import percent


def judge_sequences(facts: JobEvidence) -> Finding | None:
    """Data that costs ranks unequal time; None when their work is alike, or one rank is always slow."""
    sequences = facts.sequences
    if sequences is None:
        return None
    return Finding(
        kind=Kind.SEQUENCE_IMBALANCE,
        confidence=0.8,
        evidence=[
            f"Compute times of ranks with equal work spread by {percent(sequences.spread_ratio)} (timers).",
            f"Forward and backward go together (correlation {sequences.correlation:.2f}): it is the data.",
            "The slowest rank changes from step to step.",
            f"The others wait about {percent(sequences.lost_ratio)} of a step.",
        ],
        advice=advice.SEQUENCES,
        gain_ratio=sequences.lost_ratio,
    )
