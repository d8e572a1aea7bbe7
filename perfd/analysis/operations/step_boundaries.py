"""Where steps begin and end among the operations of a rank that repeat, by when they ran.

Between the last reduction of gradients of a step and the first one of the next there are optimizer, loading
of data, and the forward pass: the longest pause in a repeat. With sharded parameters each micro-batch repeats
the same operations; but only after the last one of a step the optimizer runs, so that each so many pauses one
is longer.
"""

from __future__ import annotations

import math

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats
from perfd.analysis.data.robust_stats import median

_MOST_MICRO_BATCHES = 64
"""In a step; more are not tried. Chosen."""
_FEWEST_STEPS = 8
"""By chance one of each two pauses is hardly the longer one eight times."""
_MOSTLY = 0.9
"""Of the pauses between steps that are longer than the middle, and of those inside that are not."""
LEAST_RATIO = 0.01
"""Of a micro-batch, by which the pause between steps is longer."""
_LEAD_LOST = 0.5
"""Where the host was so much less ahead than usual, it waited for the GPU, as for a loss to print: its pause
is longer for that."""
_LEAST_LEAD_US = 1_000.0
"""A host that is usually ahead of its GPU by less has no lead to lose. Chosen."""
_LEAST_OPTIMIZER_RATIO, _LEAST_OPTIMIZER_US = 3.0, 500.0
"""How many times as late, and how much later at least, the next gather comes if an optimizer runs before it:
2.7 ms instead of 0.15 ms in recordings of FSDP2."""
_LEAST_WAIT_RATIO = 3.0
"""A receive that waits takes longer than the others by this multiple of their time. In recordings of
pipelines of two stages it is by 150 times and more; transfers of one size differ by less than a half."""


def longest_pause(starts_us: Floats, ends_us: Floats, period: int) -> int:
    """Index in a repeat, from 0, of the operation with the longest median pause after it."""
    pauses_us = starts_us[1:] - ends_us[:-1]
    return int(medians_by_place(pauses_us, min(period, len(pauses_us))).argmax())


def medians_by_place(values: Floats, period: int) -> Floats:
    """(period,) medians of (n,) values by their place in a period; `period` is at most n."""
    repeats, more = divmod(len(values), period)
    whole = values[: repeats * period].reshape(repeats, period)
    medians: Floats = median(whole, axis=0)
    if more:
        medians[:more] = median(np.vstack([whole[:, :more], values[repeats * period :]]), axis=0)
    return medians


def longer_each(pauses_us: Floats, least_us: float) -> tuple[int, int] | None:
    """After how many of (n,) pauses one is longer by `least_us` or more, and which of the first ones is.

    None where none is regularly, so that 1 is never found.
    """
    ordered_us = np.sort(pauses_us)
    for count in range(2, min(_MOST_MICRO_BATCHES, len(pauses_us) // _FEWEST_STEPS) + 1):
        if not _may_stand_out(ordered_us, count, least_us):
            continue
        if not _may_end_at_one_place(pauses_us, ordered_us, count):
            continue
        last = int(medians_by_place(pauses_us, count).argmax())
        if _stand_out(pauses_us, np.arange(len(pauses_us)) % count == last, least_us):
            return count, last
    return None


def micro_batches_of(pauses_us: Floats, leads_us: Floats, each_us: float) -> tuple[int, int] | None:
    """How many micro-batches make a step, and which of the first ones ends one; None if that is open.

    `pauses_us` (n,) are those after each micro-batch, `leads_us` (n,) how far the host was ahead after them;
    a micro-batch takes `each_us`. Where no pause is longer than the others, a step may have any number of
    micro-batches whose optimizer takes no time that shows.
    """
    shown = longer_each(pauses_us, LEAST_RATIO * each_us)
    if shown is None:
        return None
    count, last = shown
    return shown if still_ahead(leads_us, np.arange(len(pauses_us)) % count == last) else None


def micro_batches_by_gathers(until_gather_us: Floats, leads_us: Floats) -> tuple[int, int] | None:
    """The same, by the time until the next gather of parameters, (n,), NaN if unknown.

    Within a step it begins at once, because the parameters have not changed; after a step the optimizer runs
    first. The next reduction comes too late to show the difference.
    """
    known = np.isfinite(until_gather_us)
    first = int(np.flatnonzero(~known)[-1]) + 1 if not known.all() else 0
    until_us, leads_us = until_gather_us[first:], leads_us[first:]
    ordered_us = np.sort(until_us)
    for count in range(2, min(_MOST_MICRO_BATCHES, len(until_us) // _FEWEST_STEPS) + 1):
        if not _may_end_at_one_place(until_us, ordered_us, count):
            continue
        last = int(medians_by_place(until_us, count).argmax())
        ends = np.arange(len(until_us)) % count == last
        least_us = max(_LEAST_OPTIMIZER_US, (_LEAST_OPTIMIZER_RATIO - 1) * float(median(until_us[~ends])))
        if _stand_out(until_us, ends, least_us):
            return (count, (last + first) % count) if still_ahead(leads_us, ends) else None
    return None


def next_starts_us(ends_us: Floats, starts_us: Floats) -> Floats:
    """For operations that end at (n,) times, when the next of (m,) others begins; NaN if none does.

    Both are sorted. Also NaN for those that end before all others, because earlier others may be unknown.
    """
    if not len(starts_us):
        return np.full(len(ends_us), np.nan)
    place = np.searchsorted(starts_us, ends_us)
    known = (place > 0) & (place < len(starts_us))
    return np.where(known, starts_us[np.minimum(place, len(starts_us) - 1)], np.nan)


def ran_between_us(ends_us: Floats, following_us: Floats, spans_us: Floats) -> Floats:
    """For how long of (n,) pauses, from `ends_us` to `following_us`, others ran that began in them.

    `spans_us` (2, m) are the sorted starts of the others and their ends. At most the pause.
    """
    starts_us = spans_us[0]
    total_us = np.concatenate(([0.0], np.nan_to_num(spans_us[1] - starts_us).cumsum()))
    ran_us = total_us[starts_us.searchsorted(following_us)] - total_us[starts_us.searchsorted(ends_us)]
    return np.asarray(np.minimum(ran_us, following_us - ends_us))


def receives_of_step(durations_us: Floats) -> int | None:
    """How many receives of a pipeline stage make a step; None where that does not show.

    `durations_us` (n,) are those of one rank from one peer, none left out. The receives in the middle of a
    step share a kernel with a send, and end with it (see `p2p_timing`); the one that begins or ends a step
    runs alone, and waits for the other stage. So each so many receives one takes longer.
    """
    for count in range(2, min(_MOST_MICRO_BATCHES, len(durations_us) // _FEWEST_STEPS) + 1):
        whole = durations_us[-(len(durations_us) // count) * count :]
        longest = int(median(whole.reshape(-1, count), axis=0).argmax())
        waits = np.arange(len(whole)) % count == longest
        usual_us = float(median(whole[~waits]))
        if _stand_out(whole, waits, _LEAST_WAIT_RATIO * usual_us):
            return count
    return None


def repeats_between(starts_us: Floats, others_us: Floats, period: int) -> int:
    """How many repeats of `period` operations, begun at (n,) times, come between others, begun at (m,) times.

    A rank that receives activations, as in a ring, does so in each step. Layers that are all alike repeat
    between two forward passes, and a step is as many of them. 1 where that varies or is seen too rarely.
    """
    within = others_us[(others_us >= starts_us[0]) & (others_us <= starts_us[-1])]
    apart = np.diff(np.unique(np.searchsorted(starts_us, within)))
    if len(apart) < _FEWEST_STEPS or (apart != apart[0]).any() or apart[0] % period:
        return 1
    repeats = int(apart[0]) // period
    return repeats if repeats <= _MOST_MICRO_BATCHES else 1


def come_in_breaks(starts_us: Floats, ends_us: Floats, others_us: Floats, period: int) -> bool | None:
    """Whether others, begun at (m,) times, come in pauses that last longer than `period` operations take.

    None where none comes between the (n,) operations, or these are too few.
    """
    if len(starts_us) <= period:
        return None
    usual_us = float(median(starts_us[period:] - starts_us[:-period]))
    within = others_us[(others_us >= starts_us[0]) & (others_us < starts_us[-1])]
    if not len(within):
        return None
    place = np.searchsorted(starts_us, within, side="right")
    pauses_us = starts_us[place] - ends_us[place - 1]
    return float(median(pauses_us)) > usual_us


def _may_stand_out(ordered_us: Floats, count: int, least_us: float) -> bool:
    """Whether the median of one in `count` sorted values can exceed the others' by `least_us`."""
    fewest = len(ordered_us) // count
    longest, shortest = len(ordered_us) - 1 - (fewest - 1) // 2, (len(ordered_us) - fewest - 2) // 2
    return bool(ordered_us[longest] - ordered_us[max(0, shortest)] >= least_us)


def _may_end_at_one_place(values: Floats, ordered: Floats, count: int) -> bool:
    """Whether the values at one place of `count` can mostly exceed most others; it does not change results.

    `_stand_out` finds nothing without that, and costs several times as much.
    """
    repeats = len(values) // count
    exceeded = ordered[math.ceil(_MOSTLY * (len(values) - repeats - 1)) - 1]
    above = (values[: repeats * count] > exceeded).reshape(repeats, count)
    # A place may have one value more, in the rest.
    return bool(np.count_nonzero(above, axis=0).max() >= _MOSTLY * repeats - 1)


def _stand_out(pauses_us: Floats, ends: Bools, least_us: float) -> bool:
    at_ends_us, inside_us = pauses_us[ends], pauses_us[~ends]
    longer, usual = float(median(at_ends_us)), float(median(inside_us))
    if longer - usual < least_us:
        return False
    middle = (longer + usual) / 2
    return bool(
        np.count_nonzero(at_ends_us > middle) / len(at_ends_us) >= _MOSTLY
        and np.count_nonzero(inside_us < middle) / len(inside_us) >= _MOSTLY
    )


def still_ahead(leads_us: Floats, ends: Bools) -> bool:
    """Whether the host kept its lead in the (n,) pauses at `ends`, so that the GPU was busy in them."""
    usual = float(median(leads_us[~ends]))
    return usual < _LEAST_LEAD_US or float(median(leads_us[ends])) >= _LEAD_LOST * usual
