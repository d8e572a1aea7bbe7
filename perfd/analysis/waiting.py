"""Who waits for whom: the transfer and the waiting inside NCCL's kernels, told apart without clocks.

A collective ends on all its ranks at about the same instant, and a rank's kernel runs from its own
arrival to that end. So the shortest duration is that of the rank that came last and waited for nobody,
which makes it the transfer, and what the others took longer is their waiting for that rank. Only
durations and the matching of operations by (communicator, operation, sequence number) are needed, no
agreement of clocks. (The rule is Mycroft's and Greyhound's; it holds for all-reduce, reduce-scatter,
all-gather and all-to-all, not for broadcast and reduce, whose root may finish early.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.tables import Floats

MATCHED_OPERATIONS = frozenset({"AllReduce", "ReduceScatter", "AllGather", "AlltoAll"})
"""Those whose shortest duration is the transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSplit:
    """n operations of one communicator over its g ranks; NaN, or -1, where a rank is missing."""

    transfer_s: Floats
    """(n,)"""
    wait_s: Floats
    """(n, g): how long each rank waited for the last one."""
    last_arriver: NDArray[np.int64]
    """(n,): the column of the rank that the others waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBlame:
    """What each of g ranks did to the others, over the operations that all ranks reported."""

    operations: int
    """How many operations could be matched; nothing can be said of none."""
    transfer_s: float
    """Sum over operations."""
    waited_s: Floats
    """(g,): what each rank waited."""
    caused_s: Floats
    """(g,): mean waiting of the others while this rank was the last, summed over operations."""
    last_ratio: Floats
    """(g,): share of all waiting that fell on operations where this rank was the last."""


def split(durations_s: Floats) -> WaitSplit:
    """Transfer, waiting and last arriver of each operation.

    `durations_s` is (n, g), one row an operation and one column a rank of the communicator; NaN where a rank
    did not report. A row with a missing rank says nothing: the missing one may have been the last.
    """
    complete = np.isfinite(durations_s).all(axis=1) & (durations_s.shape[1] > 1)
    transfer = np.full(len(durations_s), np.nan)
    wait = np.full(durations_s.shape, np.nan)
    last = np.full(len(durations_s), -1, dtype=np.int64)
    whole = durations_s[complete]
    if len(whole):
        transfer[complete] = whole.min(axis=1)
        wait[complete] = whole - whole.min(axis=1, keepdims=True)
        last[complete] = whole.argmin(axis=1)
    return WaitSplit(transfer_s=transfer, wait_s=wait, last_arriver=last)


def blame(durations_s: Floats) -> WaitBlame:
    """The same, summed up by rank; `durations_s` as in `split`."""
    parts = split(durations_s)
    ranks = durations_s.shape[1]
    matched = parts.last_arriver >= 0
    wait, last = parts.wait_s[matched], parts.last_arriver[matched]
    # The last rank's own waiting is zero, so the sum over the row is that of the others.
    of_others = wait.sum(axis=1) / max(1, ranks - 1)
    caused = np.bincount(last, weights=of_others, minlength=ranks).astype(np.float64)
    total = of_others.sum()
    return WaitBlame(
        operations=int(matched.sum()),
        transfer_s=float(parts.transfer_s[matched].sum()),
        waited_s=wait.sum(axis=0),
        caused_s=caused,
        last_ratio=caused / total if total > 0 else np.full(ranks, np.nan),
    )


def bus_bandwidth_bytes_per_s(operation: str, size_bytes: Floats, transfer_s: Floats, ranks: int) -> Floats:
    """Bytes a second that each link of a ring would have to carry, by nccl-tests' convention.

    Uses the transfer, not a rank's own duration: with waiting in it, a slow rank would look like a slow
    network.
    `size_bytes` is the whole message's. Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if operation == "AllReduce":
        factor = 2 * (ranks - 1) / ranks
    elif operation in {"AllGather", "ReduceScatter", "AlltoAll"}:
        factor = (ranks - 1) / ranks
    else:
        factor = 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(transfer_s > 0, size_bytes / transfer_s * factor, np.nan)
