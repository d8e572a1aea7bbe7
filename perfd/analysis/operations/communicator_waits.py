"""Which rank waits for which: transfer and waiting inside NCCL's kernels, separated without clocks.

A collective ends on all its ranks at about the same instant, and a rank's kernel runs from its own
arrival to that end. So the shortest duration is that of the rank that came last and did not wait,
which makes it the transfer, and what the others took longer is their waiting for that rank. Only
durations and the matching of operations by (communicator, operation, sequence number) are needed, no
agreement of clocks. (The rule is Mycroft's and Greyhound's; it holds for all-reduce, reduce-scatter,
all-gather and all-to-all, not for broadcast and reduce, whose root may finish early; of broadcasts
those count in which all others wait for one rank.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfd.analysis.operations.bus_factor import bus_factor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from perfd.analysis.data.job_data import Floats, Ints

MATCHED_OPERATIONS = frozenset({"AllReduce", "ReduceScatter", "AllGather", "AlltoAll"})
"""Those whose shortest duration is the transfer."""
BROADCAST = "Broadcast"
"""Its root may end early, so its shortest duration is a little less than the transfer. But waiting in it for
a late root shows which rank of a tensor group is slow: the first one reads data for the others."""

_ALIKE_RATIO = 0.5
"""Of the longest wait in a broadcast, the least of the others where all wait for the root."""
_FEW_RANKS = 16
"""Up to so many, a loop over ranks is faster than numpy over its last axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSplit:
    """Operations by g ranks, in any arrangement of operations; NaN, or -1, where a rank is missing."""

    transfer_s: Floats
    """(..., n)"""
    wait_s: Floats
    """(..., n, g): how long each rank waited for the last one."""
    last_arriver: NDArray[np.int64]
    """(..., n): the column of the rank that the others waited for."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Blames:
    """The same for c communicators of g ranks each: what is a number there is an array of c here."""

    operations: Ints
    transfer_s: Floats
    waited_s: Floats
    """(c, g)"""
    caused_s: Floats
    """(c, g)"""


def split(durations_s: Floats) -> WaitSplit:
    """Transfer, waiting and last arriver of each operation.

    `durations_s` is (n, g), one row per operation and one column per rank of the communicator; NaN where a
    rank did not report. More dimensions in front are more operations. A row with a missing rank says nothing:
    the missing one may have been the last.
    """
    if not durations_s.shape[-1]:
        nobody = np.full(durations_s.shape[:-1], np.nan)
        return WaitSplit(transfer_s=nobody, wait_s=durations_s, last_arriver=np.full(nobody.shape, -1))
    shortest, column = _shortest(durations_s)
    if durations_s.shape[-1] == 1:
        shortest = np.full_like(shortest, np.nan)
    last = np.where(np.isfinite(shortest), column, -1)
    return WaitSplit(transfer_s=shortest, wait_s=durations_s - shortest[..., None], last_arriver=last)


def _shortest(durations_s: Floats) -> tuple[Floats, Ints]:
    """The least of each row and its column. A row with an absent value is absent: NaN is its least."""
    ranks = durations_s.shape[-1]
    if ranks > _FEW_RANKS:
        return durations_s.min(axis=-1), durations_s.argmin(axis=-1)
    # Over a short last axis numpy spends its time on the loop: column by column is several times as fast.
    least = durations_s[..., 0].copy()
    column = np.zeros(least.shape, dtype=np.int8)
    for index in range(1, ranks):
        own = durations_s[..., index]
        # Arithmetic on small integers is several times as fast as writing through a mask.
        np.maximum(column, (own < least) * np.int8(index), out=column)
        np.minimum(least, own, out=least)
    return least, column.astype(np.int64)


def of_late_roots(durations_s: Floats) -> Floats:
    """The durations (..., g) of broadcasts, without those in which the last one need not be the root.

    All others wait for a late root alike. For another late rank only those behind it wait, and the root may
    have ended before it came: then the shortest duration is not that of the last.
    """
    if durations_s.shape[-1] < 2:
        return durations_s
    ordered = np.sort(durations_s, axis=-1)
    waits = ordered - ordered[..., :1]
    alike = waits[..., 1] >= _ALIKE_RATIO * waits[..., -1]
    return np.where(alike[..., None], durations_s, np.nan)


def blames(durations_s: Floats) -> Blames:
    """What each rank of each communicator did to the others; `durations_s` is (c, n, g)."""
    return blames_of(split(durations_s))


def blames_of(parts: WaitSplit) -> Blames:
    """The same, of operations that are split already."""
    communicators, _, ranks = parts.wait_s.shape
    matched = parts.last_arriver >= 0
    wait, transfer = parts.wait_s, parts.transfer_s
    if not matched.all():
        wait, transfer = np.where(matched[..., None], wait, 0.0), np.where(matched, transfer, 0.0)
    # The last rank's own waiting is zero, so the sum over the row is that of the others.
    of_others = wait.reshape(-1, ranks) @ np.full(ranks, 1 / max(1, ranks - 1))
    place = np.arange(communicators)[:, None] * ranks + np.maximum(parts.last_arriver, 0)
    caused = np.bincount(place.ravel(), weights=of_others.ravel(), minlength=communicators * ranks)
    return Blames(
        operations=matched.sum(axis=1),
        transfer_s=transfer.sum(axis=1),
        # Over an axis in the middle numpy's own sum is several times as slow.
        waited_s=np.einsum("cng->cg", wait),
        caused_s=caused.astype(np.float64).reshape(communicators, ranks),
    )


def blame(durations_s: Floats) -> WaitBlame:
    """The same for one communicator; `durations_s` as in `split`."""
    result = blames(durations_s[None])
    caused = result.caused_s[0]
    total = caused.sum()
    return WaitBlame(
        operations=int(result.operations[0]),
        transfer_s=float(result.transfer_s[0]),
        waited_s=result.waited_s[0],
        caused_s=caused,
        last_ratio=caused / total if total > 0 else np.full(len(caused), np.nan),
    )


def bus_bandwidth_bytes_per_s(operation: str, size_bytes: Floats, transfer_s: Floats, ranks: int) -> Floats:
    """Bytes a second that each link of a ring would have to carry, by nccl-tests' convention.

    Uses the transfer, not a rank's own duration: with waiting in it, a slow rank would look like a slow
    network.
    `size_bytes` is the whole message's.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = size_bytes / transfer_s * bus_factor(operation, ranks)
        return np.where(transfer_s > 0, bandwidth, np.nan)
