"""Which ranks of a job report, and what is known of them before their times are looked at.

Ranks are numbered by whoever runs the job, and not always from 0 or without gaps. So arrays are by place in
the order of those that report: a rank of any number costs as much as rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Ints
from perfd.analysis.layout import roles_of
from perfd.analysis.steps import stage_of_ranks
from perfd.model import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIndex:
    """The ranks of a job, each at its place."""

    ranks: Ints
    """Their numbers, in order."""
    stages: Ints
    """Of each; -1 where it is unknown."""
    roles: Ints
    """Of each, the same for ranks with the same work; -1 where it is unknown."""
    reporting: Ints
    """The places of those that say something themselves, in order."""
    missing: Ints
    """The numbers of those of the job that say nothing although others do, in order."""
    in_doubt: Bools
    """Of each, whether it may be late because of one that says nothing, or says it late."""


def roster(
    timed: Ints,
    members: Sequence[Ints],
    parallel: ParallelLayout,
    *,
    may_have_stages: bool,
    behind: Sequence[int] = (),
) -> RankIndex:
    """Of the ranks that are `timed`, or without any those of the communicators, which have these `members`.

    A job of unknown layout has one stage unless it `may_have_stages`. What is known of the ranks `behind` is
    of some time ago.
    """
    timed = np.sort(timed)
    ranks = _ranks(timed, members)
    reporting = np.searchsorted(ranks, timed) if len(timed) else np.arange(len(ranks))
    missing = _missing(ranks[reporting], parallel)
    stages = _stages(np.append(ranks, missing), parallel, may_have_stages=may_have_stages)
    silent: Bools = (np.arange(len(stages)) >= len(ranks)) | np.isin(np.append(ranks, missing), behind)
    doubtful = _in_doubt(stages, silent)
    return RankIndex(
        ranks=ranks,
        stages=stages[: len(ranks)],
        roles=roles_of(ranks, stages[: len(ranks)], parallel),
        reporting=reporting,
        missing=missing,
        in_doubt=doubtful[: len(ranks)],
    )


def _ranks(timed: Ints, members: Sequence[Ints]) -> Ints:
    """All that report, in order, as those that are `timed` are."""
    highest = max((int(one.max()) for one in members), default=-1)
    if highest < len(timed) and _without_gaps(timed):
        return timed
    return np.unique(np.concatenate([timed, *(one.ravel() for one in members)]))


def _without_gaps(ranks: Ints) -> bool:
    return bool((ranks == np.arange(len(ranks))).all())


def _missing(reporting: Ints, parallel: ParallelLayout) -> Ints:
    if not parallel.world_size or not len(reporting):
        return np.zeros(0, dtype=np.int64)
    silent: Bools = np.ones(parallel.world_size, dtype=np.bool_)
    silent[reporting[reporting < parallel.world_size]] = False
    return np.flatnonzero(silent)


def _stages(ranks: Ints, parallel: ParallelLayout, *, may_have_stages: bool) -> Ints:
    """The stage of each rank, -1 where it is unknown."""
    stages = stage_of_ranks(ranks, parallel)
    if stages is not None:
        return stages
    several = may_have_stages or parallel.pp is not None
    return np.full(len(ranks), -1 if several else 0, dtype=np.int64)


def _in_doubt(stages: Ints, silent: Bools) -> Bools:
    """Ranks that may be late because of one that is silent, or of one that may be: its stage, or a pipeline.

    A whole pipeline is late with one of its ranks, and of each pipeline a rank is of that stage.
    """
    if not silent.any():
        return silent
    if stages.max(initial=0) > 0:
        return np.ones_like(silent)
    return np.asarray(np.isin(stages, stages[silent]))
