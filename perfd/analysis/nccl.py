"""Communication as NCCL's own kernels show it: how much is transfer, how much is waiting, and for whom.

Rests on the perfd plugin's times by the GPU's clock. See `perfd.analysis.waiting` for the rule that tells
transfer from waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.pipeline import stage_of_ranks
from perfd.analysis.tables import CollectiveTable, Floats, JobData
from perfd.analysis.waiting import MATCHED_OPERATIONS, blame, bus_bandwidth_bytes_per_s, split
from perfd.model import ParallelLayout

_FEWEST_OPERATIONS = 20
"""Fewer matched operations say nothing of a rank."""
_TINY_BYTES = 64 * 1024
"""A message so small is latency, not bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclGroup:
    """One kind of operation on one communicator, over the operations that all ranks reported."""

    communicator: str
    group: str | None
    """`tp`, `cp`, `dp`, `pp`, or `world`, by its members and the job's layout; None when they fit none."""
    operation: str
    ranks: Sequence[int]
    operations: int
    transfer_s: float | None
    """Median of an operation's transfer."""
    wait_ratio: float | None
    """Share of the time in these kernels, over all ranks, that is waiting."""
    bus_bytes_per_s: float | None
    """Median over operations that are large enough to be bound by bandwidth; of their transfer."""
    last_rank: int | None
    """The rank that the others waited for most."""
    last_ratio: float | None
    """Its share of all waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRank:
    """One rank's time in NCCL's kernels, as shares of all time."""

    rank: int
    busy_ratio: float
    wait_ratio: float | None
    """Waiting for the others."""
    caused_ratio: float | None
    """About what each of its peers waited for it, of all time: ranks of its stage only, since a later
    stage is last by design."""
    last_ratio: float | None
    """Its share of all waiting among its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """The plugin's view of a job's communication; empty and None without it."""

    share_ratio: float | None = None
    """Time with an NCCL kernel on the GPU, waiting and hidden parts included; the mean over ranks."""
    transfer_ratio: float | None = None
    wait_ratio: float | None = None
    groups: Sequence[NcclGroup] = ()
    ranks: Sequence[NcclRank] = ()
    lost_operations: int | None = None
    """Operations that were not seen, of all ranks: with some lost, the shares are lower bounds."""


def nccl(job: JobData, parallel: ParallelLayout) -> Nccl:
    """What the newest operations of all communicators tell."""
    if not job.nccl and not job.collectives:
        return Nccl()
    size = 1 + max([time.rank for time in job.nccl] + [rank for t in job.collectives for rank in t.ranks])
    tally = _Tally(max(size, parallel.world_size or 0))
    for table in job.collectives:
        if table.operation in MATCHED_OPERATIONS:
            tally.add(table, peers=_same_stage(table.ranks, parallel))
    ranks = [_rank(time.rank, time.busy_s / time.span_s, tally) for time in job.nccl if time.span_s > 0]
    share = float(np.mean([rank.busy_ratio for rank in ranks])) if ranks else None
    waits = [rank.wait_ratio for rank in ranks if rank.wait_ratio is not None]
    # Of some ranks' waiting nothing follows for the rest.
    wait = float(np.mean(waits)) if waits and len(waits) == len(ranks) else None
    return Nccl(
        share_ratio=share,
        transfer_ratio=None if share is None or wait is None else max(0.0, share - wait),
        wait_ratio=wait,
        groups=[_group(table, parallel) for table in job.collectives],
        ranks=ranks,
        lost_operations=sum(time.lost_operations for time in job.nccl) if job.nccl else None,
    )


def group_name(ranks: Sequence[int], parallel: ParallelLayout) -> str | None:
    """The dimension along which the members differ, in Megatron's order tp, cp, dp, pp; None when it is none.

    Source: `megatron/core/parallel_state.py`, whose default order is tp-cp-ep-dp-pp.
    """
    members = np.sort(np.asarray(ranks, dtype=np.int64))
    if len(members) < 2:
        return None
    stride = 1
    for name, size in (
        ("tp", parallel.tp),
        ("cp", parallel.cp or 1),
        ("dp", parallel.dp),
        ("pp", parallel.pp),
    ):
        if not size:
            return None
        first = int(members[0])
        if len(members) == size and (members == first + stride * np.arange(size)).all():
            return "world" if size == parallel.world_size else name
        stride *= size
    whole = len(members) == parallel.world_size and (members == np.arange(len(members))).all()
    return "world" if whole else None


class _Tally:
    """Shares of time by global rank, summed over communicators."""

    def __init__(self, world: int) -> None:
        self.wait: Floats = np.zeros(world)
        self.caused: Floats = np.zeros(world)
        self.among_peers: Floats = np.zeros(world)
        """Mean waiting in groups of peers, whoever caused it."""
        self.operations = np.zeros(world, dtype=np.int64)
        self.peer_operations = np.zeros(world, dtype=np.int64)

    def add(self, table: CollectiveTable, *, peers: bool) -> None:
        result = blame(table.durations_s)
        in_table_s = result.transfer_s + result.waited_s
        if result.operations == 0 or not in_table_s.any() or not np.isfinite(table.kernel_ratio).all():
            return
        # The operations in the table stand for all of their kind: what they are of the time, by what they
        # are in the table. It is the same for all ranks but for what was lost on the way.
        scale = float(table.kernel_ratio.mean() / in_table_s.mean())
        members = np.asarray(table.ranks, dtype=np.int64)
        self.wait[members] += scale * result.waited_s
        self.operations[members] += result.operations
        if peers:
            self.caused[members] += scale * result.caused_s
            self.among_peers[members] += scale * result.caused_s.sum()
            self.peer_operations[members] += result.operations


def _rank(rank: int, busy_ratio: float, tally: _Tally) -> NcclRank:
    known = tally.operations[rank] >= _FEWEST_OPERATIONS
    peers_known = tally.peer_operations[rank] >= _FEWEST_OPERATIONS
    waiting = tally.among_peers[rank]
    return NcclRank(
        rank=rank,
        busy_ratio=busy_ratio,
        wait_ratio=float(tally.wait[rank]) if known else None,
        caused_ratio=float(tally.caused[rank]) if peers_known else None,
        last_ratio=float(tally.caused[rank] / waiting) if peers_known and waiting > 0 else None,
    )


def _group(table: CollectiveTable, parallel: ParallelLayout) -> NcclGroup:
    result = blame(table.durations_s)
    parts = split(table.durations_s)
    matched = parts.last_arriver >= 0
    total = result.transfer_s * len(table.ranks) + float(result.waited_s.sum())
    large = matched & (table.size_bytes >= _TINY_BYTES)
    bandwidth = bus_bandwidth_bytes_per_s(
        table.operation, table.size_bytes[large], parts.transfer_s[large], len(table.ranks)
    )
    bandwidth = bandwidth[np.isfinite(bandwidth)]
    waiting = bool(result.operations and result.caused_s.sum() > 0)
    last = int(np.argmax(result.caused_s)) if waiting else None
    return NcclGroup(
        communicator=table.communicator,
        group=group_name(table.ranks, parallel),
        operation=table.operation,
        ranks=tuple(table.ranks),
        operations=result.operations,
        transfer_s=float(np.median(parts.transfer_s[matched])) if result.operations else None,
        wait_ratio=float(result.waited_s.sum()) / total if total > 0 else None,
        bus_bytes_per_s=float(np.median(bandwidth)) if len(bandwidth) else None,
        last_rank=None if last is None else int(table.ranks[last]),
        last_ratio=None if last is None else float(result.last_ratio[last]),
    )


def _same_stage(ranks: Sequence[int], parallel: ParallelLayout) -> bool:
    stages = stage_of_ranks(np.asarray(ranks, dtype=np.int64), parallel)
    return stages is not None and bool((stages == stages[0]).all())
