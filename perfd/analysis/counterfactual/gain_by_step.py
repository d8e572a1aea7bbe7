"""Replays steps of groups of peers with one member as fast as the others typically are.

Peers begin a step together, since the step before ended for all of them with the same operations, and each
comes to the step's reductions when its own work is done. So who waits w there was w earlier than the last
one, and the step lasts until the last one comes. The replay takes a member's excess over its peers away and
asks when the last one comes then; the transfer that follows stays as long as it was.

The excess has two parts. What is there in nearly every step is the median of the distance to the peers'
median. The rest scatters: it is replaced, rank by rank of its size, by how the peers themselves scatter, so
that chance gains nothing and a stall now and then gains what it costs. (Replaying a job's own timeline with
ideal durations: Lin et al. 2025, "Understanding Stragglers in Large Model Training Using What-if Analysis";
there operations are replaced by their mean, which takes away chance, too.)
"""

from __future__ import annotations

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import mean, median, median_error

_FEW_RATIO = 0.1
"""So many members of a group may be slow together."""
_FEWEST_BLOCKS = 5
"""From this many on, the highest and the lowest are left out: a single pause is not a fault."""


def gains_by_step(waits_s: Floats, members: Ints) -> tuple[Floats, Floats]:
    """(k, steps): how much earlier each step would end, in seconds, if one member were as its peers.

    And (k,): the standard error of the excess that is taken away for that, in seconds.
    `waits_s` is (k, steps, g), what each of the g peers of k groups waits for the last one, NaN where a step
    is not known; `members` (k,) is the column whose excess is taken away. A step can end later, too, where
    the member happened to be early. All zeros in a group of one. Of a few that are slow together the excess
    of all is taken away, so that they do not excuse each other.
    """
    groups, steps, ranks = waits_s.shape
    if ranks < 2 or not steps:
        return np.zeros((groups, steps)), np.zeros(groups)
    own, others = _own_and_others(waits_s, members)
    typical = np.asarray(median(others))
    excess = own - typical
    middle = np.asarray(median(excess))[:, None]
    scatter = excess - middle
    if ranks == 2:
        # How one rank scatters by the other one is how the other one does by it.
        spread, slow_together = -scatter, np.zeros((groups, ranks), dtype=np.bool_)
    else:
        distance = others - typical[..., None]
        usual = np.asarray(median(distance, axis=1))
        spread = distance - usual[:, None]
        slow_together = _slow_together(usual, middle, scatter)
    # A rank that is always early stays as early.
    replayed = typical + np.minimum(middle, 0.0) + _as_spread(scatter, spread.reshape(groups, -1))
    if slow_together.any():
        others = np.where(slow_together[:, None], np.nan, others)
    # Who of the others comes last decides if the member does not.
    return np.asarray(-np.maximum(np.fmax.reduce(others, axis=2), replayed)), median_error(excess)


def excess_by_step(waits_s: Floats, members: Ints) -> Floats:
    """(k, steps): how much later than the median of its peers one member came, in seconds; same arguments."""
    if waits_s.shape[2] < 2:
        return np.zeros(waits_s.shape[:2])
    own, others = _own_and_others(waits_s, members)
    return np.asarray(own - np.asarray(median(others)))


def latest_excess_by_step(waits_s: Floats, members: Ints) -> Floats:
    """(k, steps): how much later than the median of all the last other member came; same arguments."""
    groups, steps, ranks = waits_s.shape
    if ranks < 2:
        return np.zeros((groups, steps))
    excess = np.asarray(median(waits_s))[..., None] - waits_s
    excess[np.arange(groups), :, members] = -np.inf
    # The median of two is in the middle between them.
    return np.asarray(np.fmax.reduce(excess, axis=2) * (2 if ranks == 2 else 1))


def _own_and_others(waits_s: Floats, members: Ints) -> tuple[Floats, Floats]:
    """Arrivals relative to the last: the member's, (k, steps), and the others', (k, steps, g), NaN at it."""
    ranks = waits_s.shape[2]
    # Each may have waited in some operation of a step. Then the one that waited least came last in all.
    arrivals = np.fmin.reduce(waits_s, axis=2)[..., None] - waits_s
    own = arrivals[np.arange(len(waits_s)), :, members]
    return own, np.where(np.arange(ranks) == members[:, None, None], np.nan, arrivals)


def _slow_together(usual: Floats, middle: Floats, scatter: Floats) -> Bools:
    """(k, g): others that are as late in nearly every step, if they are few and it is beyond chance.

    `usual` (k, g) and `middle` (k, 1) are the median distances of the others and of the member itself.
    """
    few = round(_FEW_RATIO * (usual.shape[1] - 1))
    certain = middle > np.asarray(median(np.abs(scatter)))[:, None]
    slow = certain & (usual >= middle / 2)
    return np.asarray(slow & (slow.sum(axis=1) <= few)[:, None])


def trimmed_mean(values: Floats, blocks: int) -> Floats:
    """The mean over the last axis of what is known, without the highest and the lowest of so many blocks.

    The axis is cut into blocks of equal length; of fewer than five none is left out.
    """
    length = values.shape[-1] // blocks * blocks
    of_block = mean(values[..., values.shape[-1] - length :].reshape(*values.shape[:-1], blocks, -1))
    if blocks < _FEWEST_BLOCKS:
        return mean(of_block)
    return mean(np.sort(of_block, axis=-1)[..., 1:-1])


def _as_spread(scatter: Floats, spread: Floats) -> Floats:
    """(k, steps): each value replaced by that of the same order among the peers' own, (k, any)."""
    steps = scatter.shape[1]
    order = np.argsort(np.argsort(scatter, axis=1, kind="stable"), axis=1, kind="stable")
    taken = np.empty_like(scatter)
    for group, (own_order, of_peers) in enumerate(zip(order, spread, strict=True)):
        known = np.sort(of_peers[np.isfinite(of_peers)])
        if not len(known):
            taken[group] = 0.0
            continue
        place = ((own_order + 0.5) / steps * len(known)).astype(np.int64)
        taken[group] = known[place]
    return np.where(np.isfinite(scatter), taken, np.nan)
