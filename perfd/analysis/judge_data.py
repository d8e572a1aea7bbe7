"""Whether the job waits for its input."""

from __future__ import annotations

from perfd.analysis.findings import Culprit, Facts, Finding, Kind
from perfd.analysis.judge_ranks import one_rank_loads_slowly
from perfd.analysis.shares import DataLoading
from perfd.analysis.words import percent

_DATA = 0.05


def judge_data(facts: Facts, *, named: bool = False) -> Finding | None:
    """Time in the timer of the input; None when it is small, or work on the GPU of a slow rank.

    `named` is whether a slow rank is named already.
    """
    data = facts.data
    if data.share_ratio is None or data.share_ratio < _DATA:
        return None
    if any(straggler.wait_ratio >= data.share_ratio / 2 for straggler in facts.stragglers_by_activity):
        return None
    one_rank = one_rank_loads_slowly(data)
    if one_rank and facts.activity_undecided:
        return None if named else _undecided(data)
    return Finding(
        kind=Kind.DATA_LOADING,
        confidence=0.6 if one_rank and data.slow_rank is None else 0.8,
        culprits=_culprits(data),
        evidence=_evidence(data, one_rank=one_rank),
        recommendation="Give the data loader more workers and prefetching, keep the data on local disks,"
        " and move tokenisation out of the training loop.",
        lost_ratio=data.share_ratio,
    )


def _undecided(data: DataLoading) -> Finding:
    """What is said while GPUs have been seen in too few steps.

    The host waits in this timer for work of its GPU, too: copies of the batch queue behind it.
    """
    return Finding(
        kind=Kind.UNKNOWN,
        confidence=0.0,
        culprits=_culprits(data),
        evidence=[
            *_evidence(data, one_rank=True, undecided=True),
            "Slow input shows so, and so does a slow GPU; GPUs were seen in too few steps to tell.",
        ],
        recommendation="Wait for some more steps.",
        lost_ratio=data.share_ratio,
    )


def _culprits(data: DataLoading) -> tuple[Culprit, ...]:
    return () if data.slow_rank is None else (Culprit(kind="rank", id=data.slow_rank),)


def _evidence(data: DataLoading, *, one_rank: bool, undecided: bool = False) -> list[str]:
    evidence = [
        f"Loading data takes {percent(data.share_ratio or 0)} of a step on the slowest rank ({data.source})."
    ]
    if one_rank and data.least_ratio is not None:
        cause = "one rank is slow" if undecided else "one rank's input is slow"
        who = (
            " the others wait; the log does not say which rank."
            if data.slow_rank is None
            else f" the others wait for it: rank {data.slow_rank}."
        )
        evidence.append(f"It takes only {percent(data.least_ratio)} on the fastest one, so {cause} and{who}")
    return evidence
