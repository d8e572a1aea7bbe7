"""Selects the processes that are ranks, and derives placements, changes and events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfd.model import Event, EventKind, JobOrigin, RankPlacement
from perfd_collectors.ranks.environment import RankIdentity, origin_of

JobName = Callable[[RankIdentity], str]
_Process = tuple[int | None, int | None]
"""PID and start time, because PIDs are reused."""
_STARTED_WITHIN_NS = 2_000_000_000
"""By so much a process may have started before it says: the node's boot time is known to a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """A process with rank variables in its environment; may also be a launcher or data loader."""

    pid: int
    ancestors: Sequence[int]
    """PIDs, parent first."""
    identity: RankIdentity
    gpu: int | None
    holds_gpu: bool
    gpus_of_ranks: Mapping[int, int | None] = field(default_factory=dict)
    """The GPU of each rank of a process with several; empty for one with one, whose rank `identity` has."""
    started_unix_ns: int | None = None
    time_limit_unix_s: float | None = None


def rank_processes(processes: Iterable[RankProcess], before: Collection[int] = ()) -> list[RankProcess]:
    """The processes that are ranks: one per job and rank, of several with a GPU one of `before`."""
    ranks: dict[tuple[str | None, int], RankProcess] = {}
    for process in sorted(claimants(processes), key=lambda one: (not one.holds_gpu, one.pid not in before)):
        ranks.setdefault((process.identity.job, process.identity.rank), process)
    return list(ranks.values())


def claimants(processes: Iterable[RankProcess]) -> list[RankProcess]:
    """The processes that may be ranks, those that hold a GPU first.

    A launcher's environment may resemble a rank's (Slurm's variables of the node's
    task, a pod's RANK), but it has other ranks as descendants and holds no GPU.
    Data loaders inherit the environment of their rank.
    """
    found = {process.pid: process for process in processes}
    launchers = {
        ancestor
        for process in found.values()
        for ancestor in process.ancestors
        if ancestor in found
        and not found[ancestor].holds_gpu
        and found[ancestor].identity != process.identity
    }
    claiming = []
    for process in sorted(found.values(), key=lambda process: (not process.holds_gpu, process.pid)):
        copies = (found.get(ancestor) for ancestor in process.ancestors if ancestor not in launchers)
        inherited = any(copy is not None and copy.identity == process.identity for copy in copies)
        if process.pid not in launchers and not inherited:
            claiming.append(process)
    return claiming


def of_one_user(
    processes: Iterable[RankProcess],
    job_of: JobName,
    users: Mapping[str, int],
    scheduled: Mapping[str, int],
) -> tuple[list[RankProcess], dict[str, int]]:
    """The processes that are of their job's user, and the user of each job.

    Anyone can start a process whose environment says that it is a rank of a job. The job is that of the user
    whom the scheduler says, else of the one in `users`, who had it before, else of the user with a process
    that holds a GPU, else of the first one.
    """
    listed = list(processes)
    owners: dict[str, int] = {}
    for process in sorted(listed, key=lambda process: (not process.holds_gpu, process.pid)):
        job, uid = job_of(process.identity), process.identity.uid
        if uid is not None:
            owners.setdefault(job, uid)
    present = {(job_of(process.identity), process.identity.uid) for process in listed}
    owners |= {job: uid for job, uid in users.items() if (job, uid) in present}
    owners |= {job: uid for job, uid in scheduled.items() if job in owners}
    own = [
        process for process in listed if process.identity.uid in {None, owners.get(job_of(process.identity))}
    ]
    return own, owners


def origins(processes: Iterable[RankProcess], job_of: JobName) -> list[JobOrigin]:
    """Whose each job is, as its lowest rank says it; only those of whom something is known."""
    lowest: dict[str, RankProcess] = {}
    for process in sorted(rank_processes(processes), key=lambda process: process.identity.rank):
        lowest.setdefault(job_of(process.identity), process)
    known = [origin_of(process.identity, job) for job, process in sorted(lowest.items())]
    return [origin for origin in known if origin != JobOrigin(job=origin.job)]


def placements(
    processes: Iterable[RankProcess], job_of: JobName, before: Iterable[RankPlacement] = ()
) -> list[RankPlacement]:
    """The placement of each rank, sorted by job and rank; where it was `before`, as long as it is there."""
    known = {one.pid for one in before if one.pid is not None}
    found = (
        RankPlacement(
            job=job_of(process.identity),
            rank=rank,
            local_rank=process.identity.local_rank,
            world_size=process.identity.world_size,
            gpu=gpu,
            pid=process.pid,
            pod_uid=process.identity.pod_uid,
            pod_name=process.identity.pod_name,
            started_unix_ns=process.started_unix_ns,
            time_limit_unix_s=process.time_limit_unix_s,
        )
        for process in rank_processes(processes, known)
        for rank, gpu in (process.gpus_of_ranks or {process.identity.rank: process.gpu}).items()
    )
    ranks: dict[tuple[str, int], RankPlacement] = {}
    # Jobs that have names of their own may be of one name here.
    for placement in sorted(found, key=lambda placement: placement.pid not in known):
        ranks.setdefault((placement.job, placement.rank), placement)
    return [ranks[key] for key in sorted(ranks)]


def changed(before: Iterable[RankPlacement], after: Iterable[RankPlacement]) -> list[RankPlacement]:
    """New and changed placements."""
    known = set(before)
    return [placement for placement in after if placement not in known]


def job_events(
    before: Sequence[RankPlacement],
    after: Sequence[RankPlacement],
    now_unix_ns: int,
    looked_unix_ns: int | None = None,
) -> list[Event]:
    """Events of jobs whose ranks on this node started, ended, or restarted since the last look.

    A restart begins after that look: processes that ran then ran beside those that were reported.
    """
    old, new = _processes_by_job(before), _processes_by_job(after)
    events = []
    for job in sorted(old.keys() | new.keys()):
        kind, message = _change(old.get(job, {}), new.get(job, {}), looked_unix_ns)
        if kind is None:
            continue
        # The agent may start long after the ranks, so the event has their start time.
        started = [one.started_unix_ns for one in after if one.job == job and one.started_unix_ns is not None]
        time_unix_ns = min(max(started, default=now_unix_ns), now_unix_ns)
        events.append(Event(kind=kind, time_unix_ns=time_unix_ns, message=message, job=job))
    return events


def _change(
    old: Mapping[int, _Process], new: Mapping[int, _Process], looked_unix_ns: int | None
) -> tuple[EventKind | None, str]:
    if not old:
        return EventKind.JOB_STARTED, f"{_ranks(len(new))} of the job started on this node."
    if not new:
        return EventKind.RANKS_GONE, f"{_ranks(len(old))} of the job ended on this node."
    started = [start for _, start in new.values() if start is not None]
    ran_before = looked_unix_ns is not None and any(
        start < looked_unix_ns - _STARTED_WITHIN_NS for start in started
    )
    if not set(old.values()) & set(new.values()) and not ran_before:
        return EventKind.RESTARTED, f"All ranks of the job on this node ({len(new)}) were restarted."
    return None, ""


def _ranks(count: int) -> str:
    return "One rank" if count == 1 else f"{count} ranks"


def _processes_by_job(found: Iterable[RankPlacement]) -> dict[str, dict[int, _Process]]:
    jobs: dict[str, dict[int, _Process]] = {}
    for one in found:
        jobs.setdefault(one.job, {})[one.rank] = (one.pid, one.started_unix_ns)
    return jobs
