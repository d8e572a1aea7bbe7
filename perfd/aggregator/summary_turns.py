"""Which jobs' numbers a round makes again: no round makes those of a whole large fleet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

GPUS_PER_SECOND = 1024
"""Whose numbers are made in a second at most, in a fleet of any size."""
NODES_IN_EACH_ROUND = 32
"""In a fleet of no more nodes each second brings all that there is. Chosen: it costs 1% of a core."""
GPUS_IN_EACH_ROUND = 8 * NODES_IN_EACH_ROUND
"""While all jobs have no more, every round makes all."""
SECONDS_FOR_ALL = 4.0
"""In which the numbers of a larger fleet are made once: every second, those of 128 nodes would cost eight
times as much per node as those of 1,000. Chosen: as old as requested numbers may be."""
CALM_SECONDS = 30.0
"""The same of calm jobs. Chosen: as often as the Prometheus of kube-prometheus reads them, and as old as
numbers of 4,000 nodes are anyway."""
REST_SECONDS = 4.75
"""So long rounds of a larger fleet rest while all of its jobs are calm and no rule is due: as the shipped
rules about nodes, which are due every 5 s, less the jitter of a timer."""
LEAST_GPUS = 8
"""An analysis costs at least as much as that of a job with so many: 128 small jobs fill a second."""
_PRESSING_SHARE = 0.5
"""Of a round, for jobs that show a change: they are made in the next round unless much of a fleet changes,
and the others still have their turn."""
_CHEAPER_FROM, _CHEAPER = 1024, 0.5
"""GPUs of a job beyond so many count less: its analysis takes 17 µs per GPU with 16,384, 28 µs with 160."""
_LONGEST_SHARE_S = 1.0
"""Slow or rare rounds have no more to do than others: they would become slower still."""


def gpus_per_second(all_gpus: int, calm_gpus: int = 0) -> float:
    """Of how many GPUs numbers are made in a second, where all jobs have so many, and those that are calm."""
    gpus = all_gpus - calm_gpus
    others = max(float(min(gpus, GPUS_IN_EACH_ROUND)), gpus / SECONDS_FOR_ALL)
    return min(GPUS_PER_SECOND, max(LEAST_GPUS, others + calm_gpus / CALM_SECONDS))


def counted_gpus(gpus: int) -> int:
    """As how many GPUs a job with so many counts."""
    least = max(gpus, LEAST_GPUS)
    return least - round(max(0, least - _CHEAPER_FROM) * (1 - _CHEAPER))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job with news."""

    name: str
    waited_s: float
    """How long ago its numbers were made; infinity for never."""
    gpus: int
    """Those that its analysis costs as much as; 0 if no analysis is needed."""
    pressing: bool = False
    """Whether the news may be a change of the job, not only another step like those before."""
    calm: bool = False
    """Whether its steps would show a change long before its turn, and have shown none of late."""

    @property
    def due_s(self) -> float:
        """How long it waits, as a job that is not calm."""
        return self.waited_s * (SECONDS_FOR_ALL / CALM_SECONDS if self.calm else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTurn:
    """What one round makes."""

    jobs: tuple[str, ...]
    credit_gpus: float
    """What the next round may make beside its own share; below 0 what it has to make up for."""


def may_rest(waiting: Iterable[WaitingJob], *, all_gpus: int, calm_gpus: int, turned_ago_s: float) -> bool:
    """Whether a round has nothing to make of the jobs with news, the last turn of any being so long ago.

    What the next turn has to make up for stays below a second's share of the largest fleet.
    """
    if all_gpus <= GPUS_IN_EACH_ROUND or turned_ago_s >= REST_SECONDS:
        return False
    missed = gpus_per_second(all_gpus, calm_gpus) * turned_ago_s
    return missed < GPUS_PER_SECOND and all(job.calm and not job.pressing for job in waiting)


def next_turn(
    waiting: Iterable[WaitingJob],
    *,
    all_gpus: int,
    credit_gpus: float,
    elapsed_s: float,
    calm_gpus: int = 0,
    rested_s: float = 0.0,
) -> SummaryTurn:
    """The jobs that waited longest, up to the round's share; those that press first, in a part of it.

    Of those that waited as long the smallest comes first, then the first by name. A job with more GPUs than
    a share takes those of later rounds, too. `all_gpus` are those of all jobs that go on, `calm_gpus` of
    the calm ones among them. The turn makes up for rounds that rested for `rested_s`.
    """
    ordered = sorted(waiting, key=lambda job: (-job.due_s, job.gpus, job.name))
    most = max(all_gpus, sum(job.gpus for job in ordered))
    if most <= GPUS_IN_EACH_ROUND:
        return SummaryTurn(jobs=tuple(job.name for job in ordered), credit_gpus=0.0)
    per_second = gpus_per_second(most, calm_gpus)
    longest_s = max(_LONGEST_SHARE_S, rested_s)
    share = per_second * min(max(elapsed_s, 0.0), longest_s)
    credit = min(credit_gpus + share, per_second * longest_s)
    chosen: dict[str, None] = {}
    # A fleet whose numbers could all be made in a second makes those that press, or are new, in each round.
    few = most <= GPUS_PER_SECOND
    first = left = most if few else GPUS_PER_SECOND * _PRESSING_SHARE * share / per_second
    for job in ordered:
        # One that takes several shares would come first again and again.
        if (job.pressing or math.isinf(job.waited_s)) and job.gpus <= left:
            chosen[job.name] = None
            left -= max(1, job.gpus)
    credit -= min(first - left, max(0.0, credit) * _PRESSING_SHARE)
    for job in ordered:
        if credit <= 0:
            break
        if job.name not in chosen:
            chosen[job.name] = None
            credit -= max(1, job.gpus)
    return SummaryTurn(jobs=tuple(chosen), credit_gpus=credit)
