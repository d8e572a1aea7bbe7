"""A job that hangs: how that looks from outside, and which rank did not come.

Beside a silence that says something (`silence.py`), something else must show that the ranks wait: counters of
NCCL operations that stop, GPUs that do nothing but spin in a kernel, or a dump of PyTorch's flight recorder.
While no host is read any more, nothing is known. And the rank for which they wait must do nothing: one that
reads or writes files or computes, on its GPU or while that is idle on its host, works, such as the one that
saves a checkpoint for all. A job without GPUs and NCCL has no such source: a quarter of an hour in which no
rank is seen to work is enough there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats, GpuTable, JobData, LaunchTable, NcclTimeTable
from perfd.analysis.data.robust_stats import mean
from perfd.analysis.hang.silence import REPORT_S, longest_pause_s, patience_s, said_of_silence, silence_s
from perfd.analysis.steps import stage_of_ranks
from perfd.formatting import rank_names
from perfd.model import CollectiveProgress, EventKind, GpuColumn, ParallelLayout
from perfd.thresholds import THRESHOLDS

_NO_TENSOR = 0.01
"""Share of time: a GPU whose tensor cores are active for less computes nothing of the model. Chosen."""
_TEN_SECONDS = 2
"""Which window of `LaunchTable` covers so much: what was written is flushed for some seconds, asleep."""
_MOST_ASLEEP = 0.5
"""Of it: a rank whose host sleeps less works, unless it spins while its GPU waits. Chosen."""
_OF_KERNELS = (GpuColumn.GRAPHICS_ACTIVE, GpuColumn.BUSY)
_NEWEST_S = 5.0
"""What a rank did longer ago is over; it is read once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A job that hangs, and which ranks did not come."""

    silent_s: float
    culprits: Sequence[int]
    """Ranks that the others wait for; empty if unknown."""
    evidence: Sequence[str]
    sources: int
    """How many independent sources show it besides the silence; 0 if only nothing contradicts it."""

    @property
    def sure(self) -> bool:
        """Whether it has lasted so long that a checkpoint is unlikely."""
        return self.silent_s >= THRESHOLDS.hang_certain_s


@dataclass(frozen=True, slots=True)
class _Clue:
    sentence: str
    culprits: tuple[int, ...]


def hang(job: JobData) -> Hang | None:
    """A job that hangs, or hung until an error ended it, by at least two sources; None if not."""
    silent_s = silence_s(job)
    if silent_s is None or silent_s < patience_s(job) or _no_host_is_read(job):
        return None
    parallel = job.description.parallel if job.description else ParallelLayout()
    counters = _by_counters(job.nccl, parallel, silent_s)
    if counters is not None and job.ended_unix_s is not None and not counters.culprits:
        # After the last step no rank needs NCCL, and what fails then is another thing.
        counters = None
    unreadable = {event.rank for event in job.events if event.kind is EventKind.DUMP_UNREADABLE}
    looks = (_by_progress(job.progress, unreadable), counters, _by_gpus(job.gpu, silent_s))
    clues = [clue for clue in looks if clue is not None]
    if not clues:
        return _unexplained(job, silent_s)
    named = next((clue.culprits for clue in clues if clue.culprits), ())
    if not named and silent_s < max(longest_pause_s(job.steps), THRESHOLDS.hang_pauses * job.longest_pause_s):
        # A pause that comes every half an hour is in no window of steps.
        return None
    nobody_waits = not named and clues == [counters] and _gpus_idle(job.gpu, silent_s)
    if nobody_waits and silent_s < THRESHOLDS.hang_certain_s:
        # All may load, save or end, as a trainer does that writes its last checkpoint.
        return None
    if job.ended_unix_s is None and silent_s < THRESHOLDS.hang_checkpoint_s and _works(job, named, silent_s):
        return None
    unread = (
        () if job.ended_unix_s is not None or silent_s >= THRESHOLDS.hang_certain_s else _unread(job, named)
    )
    return Hang(
        silent_s=silent_s,
        culprits=() if unread else named,
        evidence=[
            f"{said_of_silence(job, silent_s)}, longer than this job's earlier pauses.",
            *(clue.sentence for clue in clues),
            *_not_named(unread),
        ],
        sources=len(clues),
    )


def _unexplained(job: JobData, silent_s: float) -> Hang | None:
    """A job silent for so long that it hangs, though nothing shows why, unless a rank is seen to work."""
    least_s = max(THRESHOLDS.log_silent_hang_s, THRESHOLDS.hang_pauses * job.longest_pause_s)
    at_work = (*_ranks_with_io(job), *_computing_ranks(job.gpu), *_awake(job.launches))
    if job.ended_unix_s is not None or silent_s < least_s or at_work:
        return None
    hosts = () if job.launches is None else job.launches.asleep_ratio[_TEN_SECONDS]
    known = len(hosts) and np.isfinite(hosts).all()
    ranks = "No rank's process runs, reads or writes (kernel)" if known else "No rank is seen to work"
    return Hang(
        silent_s=silent_s,
        culprits=(),
        evidence=[
            f"{said_of_silence(job, silent_s)}, longer than this job's earlier pauses.",
            f"{ranks}; nothing shows for whom they wait.",
        ],
        sources=0,
    )


def _unread(job: JobData, named: Sequence[int]) -> Sequence[int]:
    """Of the ranks that did not come, those whose hosts no agent reads: they may compute, read or write."""
    read = () if job.launches is None else job.launches.rank.tolist()
    return [rank for rank in named if rank not in read]


def _not_named(unread: Sequence[int]) -> list[str]:
    if not unread:
        return []
    who = "its host is" if len(unread) == 1 else "their hosts are"
    missing = f"What {rank_names(unread)} does meanwhile is unknown, because {who} not read (kernel)"
    return [f"{missing}: not named in the first minute, since it may validate or save alone."]


def _no_host_is_read(job: JobData) -> bool:
    """Whether no host of a running job is read any more: it was killed, or its agents cannot report."""
    if job.ended_unix_s is not None or job.launches is None:
        return False
    return bool((job.launches.age_s > _NEWEST_S).all())


def _works(job: JobData, named: Collection[int], silent_s: float) -> bool:
    """Whether one of the ranks that did not come, or any if those are unknown, reads, writes or computes."""
    at_work = (*_ranks_with_io(job), *_computing_ranks(job.gpu), *_computing_hosts(job, silent_s))
    return any(rank in named or not named for rank in at_work)


def _ranks_with_io(job: JobData) -> Sequence[int]:
    table = job.launches
    if table is None or table.io_bytes_per_s is None:
        return ()
    newest = (table.age_s <= _NEWEST_S) & (table.io_bytes_per_s[0] >= THRESHOLDS.hang_io_bytes_per_s)
    return [int(rank) for rank in table.rank[newest]]


def _computing_hosts(job: JobData, silent_s: float) -> Sequence[int]:
    """Ranks whose host runs all the time while their GPU runs no kernel: a copy is pickled, for example.

    Who waits for a GPU spins on its host, too, but then that GPU runs the kernel that waits. Where GPUs were
    not read in the silence, either may be until it has lasted long.
    """
    running = _running(job.gpu, _of_silence(job.gpu, silent_s))
    awake = _awake(job.launches)
    if running is None:
        return awake if silent_s < THRESHOLDS.hang_certain_s else ()
    least = THRESHOLDS.hang_gpu_idle_ratio
    idle = [key.rank for key, ratio in zip(job.gpu.gpus, running, strict=True) if ratio <= least]
    return [rank for rank in awake if rank in idle]


def _awake(table: LaunchTable | None) -> Sequence[int]:
    """Ranks whose host runs at least half of the time."""
    if table is None:
        return ()
    awake = (table.age_s <= _NEWEST_S) & (table.asleep_ratio[_TEN_SECONDS] <= _MOST_ASLEEP)
    return [int(rank) for rank in table.rank[awake]]


def _computing_ranks(gpu: GpuTable) -> Sequence[int]:
    tensor = _recent(gpu, GpuColumn.TENSOR_ACTIVE, _newest(gpu, _NEWEST_S))
    if tensor is None:
        return ()
    busy = (key.rank for key, ratio in zip(gpu.gpus, tensor, strict=True) if ratio > _NO_TENSOR)
    return [rank for rank in busy if rank is not None]


def _by_progress(
    progress: Sequence[CollectiveProgress], unreadable: Collection[int | None] = ()
) -> _Clue | None:
    """The ranks that have not entered the newest operation of a communicator that others are in.

    Of ranks whose dump is `unreadable` nothing is known.
    """
    by_group: dict[tuple[str, str], list[CollectiveProgress]] = {}
    for entry in progress:
        by_group.setdefault((entry.source, entry.communicator), []).append(entry)
    waiting: list[_Clue] = []
    for (source, _), entries in by_group.items():
        known = [entry for entry in entries if entry.enqueued is not None]
        stuck = [entry for entry in known if (entry.completed or 0) < (entry.enqueued or 0)]
        if not stuck:
            continue
        newest = max(stuck, key=lambda entry: entry.enqueued or 0)
        behind = {entry.rank for entry in known if (entry.enqueued or 0) < (newest.enqueued or 0)}
        # If no other rank is behind, one without a dump could not write it: it is stopped, or its node is
        # gone. Otherwise the dump may as well have been cut when the job was ended.
        silent = set(newest.members) - {entry.rank for entry in entries}
        unreported, unread = silent.difference(unreadable), silent.intersection(unreadable)
        name = newest.communicator_name or newest.communicator
        waiting.append(
            _Clue(
                f"{newest.operation or 'An operation'} {newest.enqueued} of group {name} is not complete;"
                f" {_who(behind, unreported, unread)} ({source.replace('_', ' ')}).",
                tuple(sorted(behind or unreported)),
            )
        )
    # A group that waits for few is nearer to the cause than one that waits for many.
    return min(waiting, key=lambda clue: len(clue.culprits) or len(progress), default=None)


def _who(behind: Collection[int], unreported: Collection[int], unread: Collection[int]) -> str:
    reported = [
        f"{rank_names(sorted(ranks))} {what}"
        for ranks, what in (
            (behind, "did not enter it"),
            (unreported, "reported nothing of it"),
            (unread, "left a dump that cannot be read"),
        )
        if ranks
    ]
    return ", ".join(reported) or "all ranks have entered it, so its transfer hangs"


def _by_counters(times: NcclTimeTable, parallel: ParallelLayout, silent_s: float) -> _Clue | None:
    counted = times.rows(np.isfinite(times.operations))
    least_s = min(silent_s, THRESHOLDS.hang_one_rank_silence_s) - REPORT_S
    if len(counted) < 2 or (counted.still_s < least_s).any():
        return None
    sentence = "No rank has begun an NCCL operation meanwhile (nccl plugin)"
    # Ranks of different stages do different numbers of operations: only who is alone behind its peers is
    # late, and when that is so in several stages, a whole pipeline is.
    stages = stage_of_ranks(counted.rank, parallel)
    of_stage = [counted] if stages is None else [counted.rows(stages == one) for one in np.unique(stages)]
    behind = [found for peers in of_stage if (found := _behind(peers)) is not None]
    if len(behind) != 1:
        return _Clue(f"{sentence}.", ())
    rank, operations, most = behind[0]
    return _Clue(f"{sentence}: rank {rank} stands at {operations}, its peers at up to {most}.", (rank,))


def _behind(peers: NcclTimeTable) -> tuple[int, int, int] | None:
    """The rank that is behind its peers alone, its number of operations, and the most that there are."""
    order = np.argsort(peers.operations, kind="stable")
    least, *others = (int(count) for count in peers.operations[order])
    # All but the last one must have begun about as many.
    if not others or least == others[0] or others[-1] - others[0] > max(1, others[-1] // 1000):
        return None
    return int(peers.rank[order[0]]), least, others[-1]


def _by_gpus(gpu: GpuTable, silent_s: float) -> _Clue | None:
    recent = _of_silence(gpu, silent_s)
    running = _running(gpu, recent)
    if running is None:
        return None
    tensor = _recent(gpu, GpuColumn.TENSOR_ACTIVE, recent)
    if tensor is not None and np.nanmax(tensor, initial=0.0) > _NO_TENSOR:
        return None
    spinning, idle = running >= THRESHOLDS.hang_gpu_busy_ratio, running <= THRESHOLDS.hang_gpu_idle_ratio
    if not spinning.any() or (tensor is None and not idle.any()):
        return None
    idle_keys = [key for key, stands in zip(gpu.gpus, idle, strict=True) if stands]
    names_of = [key.rank for key in idle_keys if key.rank is not None]
    sentence = (
        f"{np.count_nonzero(spinning)} of {len(running)} GPUs do nothing but run a kernel that computes"
        " nothing, which is waiting in NCCL (NVML)"
    )
    # Many idle GPUs point to another kind of stop.
    if not names_of or len(names_of) > max(1, len(running) // 4):
        return _Clue(f"{sentence}.", ())
    ranks = ", ".join(map(str, names_of))
    return _Clue(f"{sentence}; the GPU of rank {ranks} is idle.", tuple(names_of))


def _gpus_idle(gpu: GpuTable, silent_s: float) -> bool:
    """Whether all GPUs are known to run no kernel, not even one that waits in NCCL."""
    running = _running(gpu, _of_silence(gpu, silent_s))
    return running is not None and bool((running <= THRESHOLDS.hang_gpu_idle_ratio).all())


def _of_silence(gpu: GpuTable, silent_s: float) -> NDArray[np.intp]:
    """Which readings are of it alone: the first is of the time before, too, and may be GPM's only one."""
    return _newest(gpu, silent_s)[1:]


def _newest(gpu: GpuTable, seconds: float) -> NDArray[np.intp]:
    """Which readings are of so long, at most of ten seconds; the first may be of the time before, too."""
    newest_unix_s = gpu.time_unix_s[-1] if len(gpu.time_unix_s) else 0.0
    return np.flatnonzero(gpu.time_unix_s >= newest_unix_s - min(seconds - REPORT_S, 10.0))


def _running(gpu: GpuTable, rows: NDArray[np.intp]) -> Floats | None:
    """Share of time in kernels, by GPU, by the first column known of each (GPM's is rare); None without."""
    each = (_recent(gpu, name, rows) for name in _OF_KERNELS if name in gpu.metrics)
    known = (found for found in each if found is not None and np.isfinite(found).all())
    return next(known, None) if len(rows) >= 3 else None


def _recent(gpu: GpuTable, name: GpuColumn, rows: NDArray[np.intp]) -> Floats | None:
    values = gpu.metrics.get(name)
    return None if values is None else mean(values[rows].astype(np.float64), axis=0)
