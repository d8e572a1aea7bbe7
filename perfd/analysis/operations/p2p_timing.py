"""How long a receiver waits if NCCL does not report it: by when its sender began.

A send and a receive that are posted together run in one kernel, as a pipeline's 1F1B schedule does it in all
but its first and last micro-batches. NCCL's kernel notes its end when the sending half is done, and a send is
done as soon as its data is in a buffer, so that the receive seems to end long before anything came (thread 0
of `ncclKernelMain` and `RunWorkBatch<ncclFuncSendRecv>` in src/device, NCCL 2.28.9; seen on H200s). A receive
cannot end before its sender began; only the clocks of two GPUs do not agree. But some receives are alone in
their kernel, and one of these that waited ends when its send ends: they show how far the clocks are apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.analysis.data.job_data import Bools, CollectiveStack, Floats, Ints
from perfd.analysis.data.robust_stats import median, over_last

_SENDER, _RECEIVER = 0, 1
"""Places of the two ranks in the arrays of a pair."""
_WAITED = 4.0
"""A receiver that takes so many times as long as its sender waited for it."""
_FEWEST_MARKS = 3
"""Operations in which a receiver waited that long; fewer may be chance. Chosen."""
_NEIGHBOURS = 5
"""The clocks' distance is the median of so many marks: they drift, and one mark may be wrong."""


def knows_receivers(pairs: CollectiveStack) -> bool:
    """Whether it is known when operations began: without, receives are lower bounds."""
    return pairs.gpu_starts_ns is not None and bool(pairs.gpu_starts_ns.max(initial=-1) >= 0)


def with_waiting_receivers(pairs: CollectiveStack) -> CollectiveStack:
    """The same pairs of ranks with durations of receives that last until their data came.

    Columns are the sender and the receiver. Without the starts of operations nothing is known to be wrong.
    """
    if pairs.gpu_starts_ns is None or not knows_receivers(pairs):
        return pairs
    rows, known, marks = _marked(pairs.durations_s, pairs.gpu_starts_ns)
    if not len(rows):
        return pairs
    durations, ratio = pairs.durations_s.copy(), pairs.kernel_ratio.copy()
    after_s = _until_sent(pairs.durations_s[rows], pairs.gpu_starts_ns[rows], known, marks)
    seen_s = np.nansum(durations[rows, :, _RECEIVER], axis=1)
    durations[rows, :, _RECEIVER] = after_s
    longer = np.nansum(after_s, axis=1) / np.where(seen_s > 0, seen_s, np.nan)
    ratio[rows, _RECEIVER] = np.fmin(ratio[rows, _RECEIVER] * longer, 1.0)
    return replace(pairs, durations_s=durations, kernel_ratio=ratio)


def receiver_durations_s(durations_s: Floats, starts_ns: Ints) -> Floats:
    """How long each receive took, in seconds; both arguments are (n, 2), or (c, n, 2) of several pairs.

    Unknown durations are NaN and unknown starts negative; what they concern stays as it is.
    """
    if durations_s.ndim == 2:
        return np.asarray(receiver_durations_s(durations_s[None], starts_ns[None])[0])
    rows, known, marks = _marked(durations_s, starts_ns)
    lasted = durations_s[..., _RECEIVER].copy()
    if len(rows):
        lasted[rows] = _until_sent(durations_s[rows], starts_ns[rows], known, marks)
    return lasted


def _marked(durations_s: Floats, starts_ns: Ints) -> tuple[Ints, Bools, Bools]:
    """Pairs with enough marks; of their operations, whether each is known, and whether it is a mark."""
    marks = durations_s[..., _RECEIVER] > _WAITED * durations_s[..., _SENDER]
    # Usually few pairs wait: what is known of the others does not matter.
    rows = np.flatnonzero(over_last(np.add, marks.view(np.int8)) >= _FEWEST_MARKS)
    known = np.asarray((starts_ns[rows] >= 0).all(axis=-1) & np.isfinite(durations_s[rows]).all(axis=-1))
    marks = known & marks[rows]
    enough = marks.sum(axis=1) >= _FEWEST_MARKS
    return rows[enough], known[enough], marks[enough]


def _until_sent(durations_s: Floats, starts_ns: Ints, known: Bools, marks: Bools) -> Floats:
    send_s, receive_s = durations_s[..., _SENDER], durations_s[..., _RECEIVER]
    began_ns = starts_ns[..., _RECEIVER]
    ends_ns = starts_ns + np.where(known[..., None], durations_s * 1e9, 0.0).astype(np.int64)
    apart_ns = _apart(ends_ns[..., _RECEIVER] - ends_ns[..., _SENDER], marks)
    # A sender whose receiver waits does not wait itself: it takes as long as senders usually take.
    usual_s = median(np.where(known, send_s, np.nan), axis=1)[:, None]
    came_ns = starts_ns[..., _SENDER] + apart_ns + np.fmin(send_s, usual_s) * 1e9
    # The operations of a communicator follow each other on a GPU.
    never = np.iinfo(np.int64).max
    following_ns = np.full(began_ns.shape, never)
    following_ns[:, :-1] = began_ns[:, 1:]
    bound_ns = np.where(following_ns > began_ns, following_ns, never)
    waited_s = (np.minimum(came_ns, bound_ns) - began_ns) / 1e9
    return np.asarray(np.where(known, np.fmax(receive_s, waited_s), receive_s))


def _apart(distances_ns: Ints, marks: Bools) -> Floats:
    """How far the clocks are apart at each operation, by the marks around the next one, or the last one."""
    counts = marks.sum(axis=1)[:, None]
    ahead = np.argsort(~marks, axis=1, kind="stable")[:, : int(counts.max())]
    of_marks = np.take_along_axis(distances_ns, ahead, axis=1)
    width = np.minimum(_NEIGHBOURS, counts)
    first = np.clip(np.arange(ahead.shape[1]) - width // 2, 0, counts - width)
    around = np.arange(_NEIGHBOURS)
    places = np.minimum(first[..., None] + around, ahead.shape[1] - 1)
    windows = np.take_along_axis(of_marks[:, None], places, axis=2).astype(np.float64)
    windows[np.broadcast_to((around >= width)[:, None], windows.shape)] = np.nan
    before: Ints = np.cumsum(marks, axis=1) - marks
    return np.take_along_axis(median(windows), np.minimum(before, counts - 1), axis=1)
