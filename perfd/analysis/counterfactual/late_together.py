"""Which sets of ranks, as those of a node, come later than their peers in other sets, step after step.

Of many ranks that are late together each is the last now and then, so that none of them costs the others much
by itself. As fast as the ranks of other sets, all of them would end each step earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.counterfactual.fault_onset import late_steps, late_stretch, step_change
from perfd.analysis.counterfactual.gain_by_step import trimmed_mean
from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import mean, median, median_error, median_of
from perfd.thresholds import THRESHOLDS

_FEWEST_RANKS = 2
"""Of a set: one rank alone is judged as a rank."""
_MOST_OF_THEM = 0.75
"""Of a set's ranks, that are late by half of what it is: else some of them are, and not the set. Chosen."""
_OF_IT = 0.5
"""Of what a set costs, what makes a rank, or a block of steps, late with it. Chosen."""


@dataclass(frozen=True, slots=True)
class WaitsOfPeers:
    """Communicators of ranks that do alike, in recent steps."""

    places: Ints
    """(k, g): which ranks their members are."""
    waited_s: Floats
    """(k, steps, g): what each member waits for the last one, NaN where a step is not known."""
    per_s: Floats
    """(k,): the share of time for a second that is lost in each step."""
    blocks: int
    """Into which the steps are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSet:
    """Ranks that are late together."""

    number: int
    """Of the set."""
    places: Ints
    """Its ranks that have peers in other sets."""
    gain_ratio: float
    """The share of a step that the job would gain if they were as fast as those."""
    error_ratio: float
    """Its standard error, from the scatter of steps."""
    persistence_ratio: float
    """The share of recent steps in which they were late."""
    waits_ratio: float = 0.0
    """What the middle one of them waits meanwhile, less what is usual of its role, as a share of the time."""
    whole: bool = True
    """Whether they do not wait for each other meanwhile."""
    awaited: int | None = None
    """The place of the one that the others of the set wait for, if it is one."""


@dataclass(frozen=True, slots=True)
class _Member:
    """What one communicator shows of one of its members."""

    gain_ratio: float
    lag_ratio: float
    error_ratio: float
    persistence_ratio: float


def late_ranks_together(  # noqa: PLR0917
    recent: Sequence[WaitsOfPeers],
    held: Callable[[], Sequence[WaitsOfPeers]],
    set_of: Ints,
    step_time_s: Floats,
    waits: Sequence[tuple[Ints, Floats]],
    lost: Callable[[], Floats],
) -> list[LateSet]:
    """Sets that cost at least half of what makes a straggler; `set_of` is by place, -1 where unknown.

    `recent` steps are judged, and all that are `held` say since when. `step_time_s` has one entry per step,
    the newest last. `waits` are ranks of communicators of any kind, (c, g), and the share of time each
    usually waits; `lost` is by place what each waits in recent steps, less what is usual of its role.
    """
    members = _by_set(recent, set_of)
    counts = {number: int((set_of == number).sum()) for number in members}
    late = [_late(number, of_set, counts[number]) for number, of_set in members.items()]
    found = [one for one in late if one is not None]
    if not found:
        return []
    all_steps, lost_ratio = held(), lost()
    inside, in_all = np.zeros((2, len(set_of)))
    for ranks, ratios in waits:
        sets = set_of[ranks]
        within = (sets == sets[:, :1]).all(axis=1)
        in_all += np.bincount(ranks.ravel(), ratios.ravel(), len(set_of))
        inside += np.bincount(ranks[within].ravel(), ratios[within].ravel(), len(set_of))
    judged = []
    for one in found:
        most_ratio = float(np.median(in_all[set_of != one.number]))
        dated = _since_onset(one, all_steps, set_of, step_time_s, most_ratio)
        with_waits = replace(dated, waits_ratio=float(np.nanmedian(lost_ratio[one.places])))
        judged.append(_with_fellows(with_waits, inside[one.places], most_ratio))
    return judged


def _by_set(groups: Sequence[WaitsOfPeers], set_of: Ints) -> dict[int, dict[int, _Member]]:
    """By set and place, what the communicator shows in which that rank costs most."""
    found: dict[int, dict[int, _Member]] = {}
    for group in groups:
        for places, waited_s, per_s in zip(group.places, group.waited_s, group.per_s.tolist(), strict=True):
            sets = set_of[places]
            known = np.unique(sets) if (sets >= 0).all() else sets[:0]
            for number in known.tolist() if len(known) > 1 else ():
                mine = sets == number
                of_set = found.setdefault(number, {})
                members = _members(waited_s, mine, per_s, group.blocks)
                for place, member in zip(places[mine].tolist(), members, strict=True):
                    if place not in of_set or member.gain_ratio > of_set[place].gain_ratio:
                        of_set[place] = member
    return found


def _since_onset(
    late: LateSet, held: Sequence[WaitsOfPeers], set_of: Ints, step_time_s: Floats, most_ratio: float
) -> LateSet:
    """The same, with what steps became longer by since they are late, if it has not always been.

    `held` are all steps that are known, `step_time_s` has one entry per step, the newest last, and
    `most_ratio` is what other sets wait at most. Waits that computation may hide are a lower bound only.
    """
    excess_s = [
        _excess(waited_s, set_of[places] == late.number)[0]
        for group in held
        for places, waited_s in zip(group.places, group.waited_s, strict=True)
        if len(set(set_of[places].tolist())) > 1 and late.number in set_of[places]
    ]
    stretch = late_stretch(late_steps(excess_s))
    change = None if stretch is None else step_change(step_time_s, stretch)
    if change is None:
        return late
    gain = min(max(change.gain_ratio, late.gain_ratio), max(most_ratio, late.gain_ratio))
    return replace(late, gain_ratio=gain, error_ratio=min(late.error_ratio, change.error_ratio))


def _with_fellows(late: LateSet, inside: Floats, most_ratio: float) -> LateSet:
    """The same, and whether one of its ranks keeps the others.

    `inside` is the share of the time that each of its places waits in operations within the set, and
    `most_ratio` what ranks of other sets wait in all.
    """
    usual = float(np.median(inside))
    if usual < _OF_IT * late.gain_ratio:
        return late
    waiting_least = late.places[inside <= _OF_IT * usual]
    one = len(waiting_least) == 1 and usual >= _OF_IT * most_ratio
    return replace(late, whole=False, awaited=int(waiting_least[0]) if one else None)


def _excess(waited_s: Floats, mine: Bools) -> tuple[Floats, Floats, Floats]:
    """By how much later than others its members came, (steps,); all arrivals, (steps, g); those of others."""
    arrivals = np.fmin.reduce(waited_s, axis=1)[:, None] - waited_s
    others = np.asarray(median(arrivals[:, ~mine], axis=1))
    return np.asarray(median(arrivals[:, mine], axis=1)) - others, arrivals, others


def _members(waited_s: Floats, mine: Bools, per_s: float, blocks: int) -> list[_Member]:
    """Of each member that is `mine`, (g,), in one communicator, (steps, g)."""
    excess, arrivals, others = _excess(waited_s, mine)
    middle = max(0.0, median_of(excess) or 0.0)
    replayed = np.where(mine, arrivals - middle, arrivals)
    gain = float(trimmed_mean(-np.fmax.reduce(replayed, axis=1), blocks)) * per_s
    length = len(excess) // blocks * blocks
    of_block = mean(excess[len(excess) - length :].reshape(blocks, -1), axis=1)
    late = float((of_block >= _OF_IT * middle).mean()) if middle else 0.0
    error = float(median_error(excess[None])[0]) * per_s
    lags = np.asarray(median(arrivals[:, mine] - others[:, None], axis=0)) * per_s
    return [_Member(gain, lag, error, late) for lag in lags.tolist()]


def _late(number: int, members: dict[int, _Member], of_set: int) -> LateSet | None:
    """None also where too few of the ranks of the set, `of_set`, are seen."""
    if len(members) < max(_FEWEST_RANKS, _MOST_OF_THEM * of_set):
        return None
    of_all = np.array([[one.gain_ratio, one.lag_ratio, one.error_ratio] for one in members.values()])
    gain, _, error = np.nan_to_num(np.median(of_all, axis=0)).tolist()
    late = float((of_all[:, 1] >= _OF_IT * gain).mean())
    if late < _MOST_OF_THEM or gain < THRESHOLDS.straggler_certain_wait_ratio / 2:
        return None
    return LateSet(
        number=number,
        places=np.array(sorted(members)),
        gain_ratio=min(1.0, gain),
        error_ratio=error,
        persistence_ratio=float(np.median([one.persistence_ratio for one in members.values()])),
    )
