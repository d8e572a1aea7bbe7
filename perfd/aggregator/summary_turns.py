"""Which jobs' numbers a round makes again: no round makes those of a whole large fleet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GPUS_PER_SECOND = 1024
"""Whose numbers are made in a second. While all jobs have no more, every round makes all."""
LEAST_GPUS = 8
"""An analysis costs at least as much as that of a job with so many: 128 small jobs fill a second."""
_PRESSING_SHARE = 0.5
"""Of a round, for jobs that show a change: they are made in the next round unless much of a fleet changes,
and the others still have their turn."""
_CHEAPER_FROM, _CHEAPER = 1024, 0.5
"""GPUs of a job beyond so many count less: its analysis takes 17 µs per GPU with 16,384, 28 µs with 160."""
_LONGEST_SHARE_S = 1.0
"""Slow or rare rounds have no more to do than others: they would become slower still."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTurn:
    """What one round makes."""

    jobs: tuple[str, ...]
    credit_gpus: float
    """What the next round may make beside its own share; below 0 what it has to make up for."""


def next_turn(
    waiting: Iterable[WaitingJob], *, all_gpus: int, credit_gpus: float, elapsed_s: float
) -> SummaryTurn:
    """The jobs that waited longest, up to the round's share; those that press first, in a part of it.

    Of those that waited as long the smallest comes first, then the first by name. A job with more GPUs than
    a share takes those of later rounds, too. `all_gpus` are those of all jobs that go on.
    """
    ordered = sorted(waiting, key=lambda job: (-job.waited_s, job.gpus, job.name))
    if max(all_gpus, sum(job.gpus for job in ordered)) <= GPUS_PER_SECOND:
        return SummaryTurn(jobs=tuple(job.name for job in ordered), credit_gpus=0.0)
    share = GPUS_PER_SECOND * min(max(elapsed_s, 0.0), _LONGEST_SHARE_S)
    credit = min(credit_gpus + share, GPUS_PER_SECOND * _LONGEST_SHARE_S)
    chosen: dict[str, None] = {}
    first = credit * _PRESSING_SHARE
    for job in ordered:
        # One that takes several shares would come first again and again.
        if job.pressing and job.gpus <= first:
            chosen[job.name] = None
            first -= max(1, job.gpus)
            credit -= max(1, job.gpus)
    for job in ordered:
        if credit <= 0:
            break
        if job.name not in chosen:
            chosen[job.name] = None
            credit -= max(1, job.gpus)
    return SummaryTurn(jobs=tuple(chosen), credit_gpus=credit)
