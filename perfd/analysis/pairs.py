"""How long a receiver waits when NCCL does not tell: by when its sender began.

A send and a receive that are posted together run in one kernel, as a pipeline's 1F1B schedule does it in all
but its first and last micro-batches. NCCL's kernel notes its end when the sending half is done, and a send is
done as soon as its data is in a buffer, so that the receive seems to end long before anything came (thread 0
of `ncclKernelMain` and `RunWorkBatch<ncclFuncSendRecv>` in src/device, NCCL 2.28.9; seen on H200s). A receive
cannot end before its sender began; only the clocks of two GPUs do not agree. But some receives are alone in
their kernel, and one of these that waited ends when its send ends: they tell how far the clocks are apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.analysis.tables import Bools, CollectiveStack, Floats, Ints

_SENDER, _RECEIVER = 0, 1
_WAITED = 4.0
"""A receiver that takes so many times as long as its sender waited for it."""
_FEWEST_MARKS = 3
_NEIGHBOURS = 5
"""The clocks' distance is the median of so many marks: they drift, and one mark may be wrong."""


def with_waiting_receivers(pairs: CollectiveStack) -> CollectiveStack:
    """The same pairs of ranks with durations of receives that last until their data came.

    Columns are the sender and the receiver. Without the starts of operations nothing is known to be wrong.
    """
    if pairs.gpu_starts_ns is None or not pairs.gpu_starts_ns.size:
        return pairs
    durations = pairs.durations_s.copy()
    ratio = pairs.kernel_ratio.copy()
    for row, length in enumerate(pairs.lengths.tolist()):
        own = slice(0, length)
        before_s = durations[row, own, _RECEIVER].copy()
        after_s = receiver_durations_s(durations[row, own], pairs.gpu_starts_ns[row, own])
        durations[row, own, _RECEIVER] = after_s
        seen_s = float(np.nansum(before_s))
        if seen_s > 0:
            ratio[row, _RECEIVER] = min(1.0, ratio[row, _RECEIVER] * float(np.nansum(after_s)) / seen_s)
    return replace(pairs, durations_s=durations, kernel_ratio=ratio)


def receiver_durations_s(durations_s: Floats, starts_ns: Ints) -> Floats:
    """How long each receive of one pair took, in seconds; `durations_s` and `starts_ns` are (n, 2).

    Unknown durations are NaN and unknown starts negative; what they concern stays as it is.
    """
    send_s, receive_s = durations_s.T
    known: Bools = np.asarray((starts_ns >= 0).all(axis=1) & np.isfinite(durations_s).all(axis=1))
    ends_ns = starts_ns + np.where(known[:, None], durations_s * 1e9, 0.0).astype(np.int64)
    marks = np.flatnonzero(known & (receive_s > _WAITED * send_s))
    if len(marks) < _FEWEST_MARKS:
        return np.asarray(receive_s)
    apart_ns = _smooth(ends_ns[marks, _RECEIVER] - ends_ns[marks, _SENDER])
    nearest = np.clip(np.searchsorted(marks, np.arange(len(known))), 0, len(marks) - 1)
    # A sender whose receiver waits does so for nobody: it takes as long as they usually take.
    usual_s = float(np.median(send_s[known]))
    came_ns = starts_ns[:, _SENDER] + apart_ns[nearest] + np.fmin(send_s, usual_s) * 1e9
    # The operations of a communicator follow each other on a GPU.
    following_ns = np.append(starts_ns[1:, _RECEIVER], np.iinfo(np.int64).max)
    bound_ns = np.where(following_ns > starts_ns[:, _RECEIVER], following_ns, np.iinfo(np.int64).max)
    waited_s = (np.minimum(came_ns, bound_ns) - starts_ns[:, _RECEIVER]) / 1e9
    return np.asarray(np.where(known, np.fmax(receive_s, waited_s), receive_s))


def _smooth(values: Ints) -> Floats:
    width = min(_NEIGHBOURS, len(values))
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    middle = np.median(windows, axis=1)
    before = width // 2
    return np.pad(middle, (before, len(values) - len(middle) - before), mode="edge")
