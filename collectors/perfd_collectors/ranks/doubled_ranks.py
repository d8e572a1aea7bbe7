"""Two jobs under one name, as when one command starts both: each has a rank 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perfd.model import Event, EventKind
from perfd_collectors.ranks.placement import JobName, RankProcess, claimants

_SHOWN = 8
"""Processes and ranks that a message names; the first are enough to find the rest."""


class DoubledRanks:
    """Says of each job when ranks of it begin to be several processes, and when that is over.

    Only if two looks agree: while a rank restarts, its earlier process may still end.
    """

    def __init__(self) -> None:
        self._doubled: frozenset[str] = frozenset()
        self._said: frozenset[str] = frozenset()

    def events(self, processes: Iterable[RankProcess], job_of: JobName, now_unix_ns: int) -> list[Event]:
        """What is news of these processes."""
        doubled = doubled_ranks(processes, job_of)
        before, self._doubled = self._doubled, frozenset(doubled)
        certain = (self._doubled & before) | (self._said & (self._doubled | before))
        news, self._said = certain ^ self._said, certain
        return [_event(job, doubled.get(job, {}), now_unix_ns) for job in sorted(news)]


def doubled_ranks(
    processes: Iterable[RankProcess], job_of: JobName
) -> Mapping[str, Mapping[int, Sequence[RankProcess]]]:
    """By job and rank, its processes with a GPU, where there is more than one."""
    by_rank: dict[str, dict[int, list[RankProcess]]] = {}
    for process in claimants(processes):
        if process.holds_gpu:
            of_job = by_rank.setdefault(job_of(process.identity), {})
            of_job.setdefault(process.identity.rank, []).append(process)
    doubled = {
        job: {rank: found for rank, found in ranks.items() if len(found) > 1}
        for job, ranks in by_rank.items()
    }
    return {job: ranks for job, ranks in doubled.items() if ranks}


def _event(job: str, doubled: Mapping[int, Sequence[RankProcess]], now_unix_ns: int) -> Event:
    message = "Each rank of the job on this node is one process again."
    if doubled:
        pids = [process.pid for processes in doubled.values() for process in processes]
        shown = ", ".join(map(str, pids[:_SHOWN]))
        ranks = ", ".join(map(str, sorted(doubled)[:_SHOWN]))
        message = f"Two jobs run under this name: PIDs {shown} are its ranks {ranks}, each several times."
    values = {"ranks": len(doubled), "on_same_gpus": sum(map(_on_same_gpu, doubled.values()))}
    return Event(
        kind=EventKind.RANKS_DOUBLED,
        time_unix_ns=now_unix_ns,
        message=message,
        job=job,
        values={name: float(value) for name, value in values.items()},
    )


def _on_same_gpu(processes: Sequence[RankProcess]) -> bool:
    gpus = [process.gpu for process in processes if process.gpu is not None]
    return len(set(gpus)) < len(gpus)
