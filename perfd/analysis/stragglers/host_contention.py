"""Hosts of ranks that wait for a CPU, a quota, storage or memory: why the ranks launch late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import HostWaitTable
from perfd.analysis.data.robust_stats import known, median
from perfd.model import RankColumn
from perfd.thresholds import THRESHOLDS

_CPUS = (RankColumn.CPU_WAIT, RankColumn.CPU_THROTTLED)
_MOST_NAMED_RATIO = 0.5
"""Of the ranks: where more of them wait, it is the job that does and no rank of it."""
_ALIKE = 2 / 3
"""Of the longest wait: one that waits for this share of it waits as the first does, even below a threshold.
Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostContention:
    """One reason for which hosts of ranks wait."""

    column: RankColumn
    ranks: Sequence[int]
    """Those that do, the one that waits longest first."""
    of_all: bool
    """Whether too many of the job's ranks do to name one."""
    value: float
    """Of the first: a share of time, or page faults per second."""
    least: float
    """Of the rank that waits least; 0 where one is unknown."""
    others: float | None
    """The median of the others; None without any."""
    beside: Mapping[RankColumn, float]
    """What else is known of the first."""


def host_contention(table: HostWaitTable | None) -> tuple[HostContention, ...]:
    """Every reason that costs more than its threshold, the one with the largest excess over it first."""
    if table is None:
        return ()
    found = []
    for column, least in _thresholds().items():
        values = table.waits.get(column)
        if values is None:
            continue
        waits = np.nan_to_num(values)
        if not (waits >= least).any():
            continue
        waiting = (waits >= least) | (waits >= _ALIKE * waits.max())
        late = np.flatnonzero(waiting)
        order = late[np.argsort(-waits[late], kind="stable")]
        rest = values[~waiting]
        found.append(
            HostContention(
                column=column,
                ranks=tuple(table.rank[order].tolist()),
                of_all=len(late) > max(1, _MOST_NAMED_RATIO * len(waits)),
                value=float(waits[order[0]]),
                least=float(waits.min()),
                others=known(float(median(rest))) if len(rest) else None,
                beside={
                    other: float(of_rank[order[0]])
                    for other, of_rank in table.waits.items()
                    if other is not column and np.isfinite(of_rank[order[0]])
                },
            )
        )
    return tuple(sorted(found, key=lambda one: -one.value / _thresholds()[one.column]))


def cpu_wait_of_all(table: HostWaitTable | None) -> float:
    """The share of time that hosts of all ranks wait for CPUs at least, now or lately; 0 if unknown.

    It needs no time to be sure: a single reading of each says that no rank has them to itself.
    """
    if table is None or len(table.rank) < 2:
        return 0.0
    shares = [of.get(column) for of in (table.waits, table.newest) for column in _CPUS]
    least = [float(np.min(np.nan_to_num(share))) for share in shares if share is not None]
    return max((share for share in least if share >= THRESHOLDS.host_cpu_wait_ratio), default=0.0)


def _thresholds() -> Mapping[RankColumn, float]:
    return {
        RankColumn.CPU_THROTTLED: THRESHOLDS.host_throttled_ratio,
        RankColumn.CPU_WAIT: THRESHOLDS.host_cpu_wait_ratio,
        RankColumn.IO_WAIT: THRESHOLDS.host_io_wait_ratio,
        RankColumn.MAJOR_FAULTS: THRESHOLDS.host_page_faults_per_s,
    }
