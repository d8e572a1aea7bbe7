"""After how many operations of one size the pauses between them repeat: buckets of gradients may be alike.

The reductions of a step follow each other as the backward pass finishes layers; before the first one of the
next step there are optimizer, loading of data, and the forward pass. So n operations come close together,
then a longer pause, and that again and again. Random operations have no such pause at each n-th place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median

_FEWEST_REPEATS = 10
"""Repeats within the held operations that a period must have. Chosen."""
_FEWEST_BITS = 40.0
"""Repeats times the logarithm of n to base 2: what random pauses show so is hardly seen in a job's life."""
_LEAST_REPEAT_US = 50_000.0
"""Layers of a tensor group repeat faster than this, most steps more slowly."""
_LEAST_CONTRAST = 2.0
"""The pause after a repeat, over the longest one inside it: micro-batches differ by less from steps."""
_SHORT_CONTRAST = 5.0
"""The same for repeats as short as layers, whose pauses for attention and for the rest differ less."""
_SHORT_SPREAD = 0.25
"""Interquartile range of such repeats' durations, over the median, up to which they are steps: the layers of
a backward pass take about twice as long as those of a forward pass."""
_UNBROKEN_REPEATS, _BREAK_RATIO, _MOST_BREAKS_RATIO = 160, 1.5, 1 / 160
"""This many short repeats are steps even if no pause stands out, if at most one takes over 1.5 times as long
as usual. Layers do not repeat that often: models have up to 126 (Llama 3.1 405B), with more time between two
passes."""
_LEAST_SHARE = 0.25
"""Of a repeat's pauses, which the one after it is: a forward pass is a quarter of the work and more."""
_LONGER_RATIO = 0.9
"""Of the pauses after repeats, those that are longer than any inside usually is."""
_DISTURBED_RATIO = 0.25
"""Of the repeats, those that may have such a pause inside: a rank that stalls each fifth step."""
_SAME_PLACE_RATIO = 0.7
"""Of the repeats, those in which the longest pause is at the most common place: less is not looked at."""
_UNEVEN_RATIO = 0.5
"""Middle half of the times between single operations, over the median, up to which each may be a step."""
_LONGEST_RATIO = 3.0
"""Of nine tenths of these times, over the median."""
_JUDGED_INTERVALS = 64
"""The newest intervals, most of which must be similar."""
_FEWEST_INTERVALS, _MOST_INTERVALS = 128, 256
"""Between pauses: fewer may look regular by chance, and older ones are another time. Chosen."""
_FEWEST_EVEN_INTERVALS, _EVEN_RATIO = 64, 0.05
"""Half as many are enough where all are known and the middle half of them is that close together."""
_LEAST_INDEPENDENCE = 1.2
"""Of such intervals: the ratio of von Neumann by ranks is 2 for independent ones (at least 1.43 in 99 of 100
series of 64), 0.1 for a random walk (at most 0.88 in 999 of 1,000)."""
_LAG = 8
"""Intervals over which the wandering of step times is measured."""
_MOST_WANDERING = 1.5
"""Ratio of the change over `_LAG` intervals to the change from one to the next: 1 for steps that vary around
one duration (at most 1.33 in 99 of 100 series of 128), for a random walk the root of the lag, 2.8 (at least
1.7 in 99 of 100)."""
_FEWEST_NUMBERED = 10
"""Distances between operations that are compared; fewer show no usual one. Chosen."""
_NUMBERED_RATIO = 0.9
"""Of these distances, those that have the usual number of scalars: evaluations add some. Chosen."""
_FEWEST_FOLDED = 5
"""Fewest operations of a repeat that only folding shows: a layer has up to four of one size."""
_MOST_DISPERSION = 0.3
"""Share of the pauses' variance that remains within the places of a repeat: 1 for random pauses, 0.02 in
recorded JAX jobs, where other periods leave at least 0.67."""
_RECURS, _PEAK = 0.4, 0.05
"""Least autocorrelation at a period, and its least excess over the next shorter and longer period, because
slow changes correlate equally at all three."""
_LEAST_PAUSE_RATIO = 0.1
"""Share of the mean pause that is added to each pause, so that the logarithms of short ones hardly vary."""
_AS_GOOD = 0.1
"""Additional dispersion up to which a period explains as much as a multiple of it."""


@dataclass(frozen=True, slots=True)
class PausePattern:
    """Operations repeat in groups."""

    period: int
    length: int
    """The newest operations that repeat so."""
    after_last: int
    """How many operations came since the newest group that is complete."""


def pause_pattern(starts_us: Floats, ends_us: Floats, *, sampled: bool = False) -> PausePattern | None:
    """The repeats of (n,) operations of one rank, by their pauses, in microseconds; None if none show.

    No operation may be missing, or if `sampled`, only every k-th one is present: then several steps may pass
    before the same places of a step are seen again, and only a pause that stands out shows a step.
    """
    if len(starts_us) <= 2 * _FEWEST_REPEATS:
        return None
    pauses_us = np.maximum(starts_us[1:] - ends_us[:-1], 0.0)
    each_us = max(1.0, float(ends_us[-1] - ends_us[0]) / len(pauses_us))
    fewest = max(2, math.ceil(_LEAST_REPEAT_US / each_us))
    shown = _shown_by_any(starts_us, pauses_us, fewest, sampled=sampled)
    if shown is None:
        return None
    period = shown.period
    repeated = pauses_us[len(pauses_us) % period :].reshape(-1, period)
    longer = repeated[:, shown.column] > shown.middle_us
    # Two repeats in a row without it are of another time, as before a group of another number.
    breaks = np.flatnonzero(~longer[1:] & ~longer[:-1])
    first = int(breaks[-1]) + 2 if len(breaks) else 0
    return PausePattern(period, (len(repeated) - first) * period, period - shown.column)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The longest of the newest pauses in repeats of `period`."""

    period: int
    column: int
    middle_us: float
    """The middle between it and the second longest."""
    contrast: float
    """The longest over the second longest."""


def _shown_by_any(starts_us: Floats, pauses_us: Floats, fewest: int, *, sampled: bool) -> _Shown | None:
    """By one pause or all of them; repeats of under `fewest` operations are as short as layers."""
    most = len(pauses_us) // _FEWEST_REPEATS
    if long := _clearest(pauses_us, range(fewest, most + 1), _LEAST_CONTRAST):
        return long
    folded = None if sampled else _folded(pauses_us)
    if folded is not None and folded.period >= fewest:
        return folded
    short = _clearest(pauses_us, range(2, min(fewest - 1, most) + 1), _SHORT_CONTRAST)
    if short is not None and _is_even(_durations_us(starts_us, short.period)):
        return short
    unbroken = folded is not None and _is_unbroken(_durations_us(starts_us, folded.period))
    return folded if unbroken else None


def _clearest(pauses_us: Floats, periods: Iterable[int], least_contrast: float) -> _Shown | None:
    """The period after which one pause stands out most."""
    found = (_shown(repeats, least_contrast) for period in periods for repeats in _repeats(pauses_us, period))
    return max((one for one in found if one is not None), key=lambda one: one.contrast, default=None)


def _folded(pauses_us: Floats) -> _Shown | None:
    """The period after which the pauses repeat as a whole, even if none stands out.

    Pauses are folded at each trial period; the right one leaves the least variance within its places:
    phase dispersion minimization (Stellingwerf 1978, The Astrophysical Journal 224, 953).
    """
    left = {
        period: _dispersion(repeats)
        for period in _recurring(pauses_us)
        for repeats in _repeats(pauses_us, period)
    }
    least = min(left.values(), default=1.0)
    if least > _MOST_DISPERSION:
        return None
    period = min(period for period, dispersion in left.items() if dispersion <= least + _AS_GOOD)
    if period < _FEWEST_FOLDED:
        # These are layers; a multiple of their period would explain no more.
        return None
    return next((_longest(median(repeats, axis=0)) for repeats in _repeats(pauses_us, period)), None)


def _recurring(pauses_us: Floats) -> list[int]:
    """Periods at which the autocorrelation of the pauses' logarithms peaks: few, so that few are folded.

    By the Fourier transform of the power spectrum (Wiener and Khinchin).
    """
    most = len(pauses_us) // _FEWEST_REPEATS
    logarithms = np.log(pauses_us + _LEAST_PAUSE_RATIO * pauses_us.mean() + 1.0)
    varying = logarithms - logarithms.mean()
    spectrum = np.fft.rfft(varying, 2 * len(varying))
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[: most + 2]
    # The longer the period, the fewer pairs of pauses are that far apart.
    correlation *= len(varying) / (len(varying) - np.arange(len(correlation)))
    neighbors = np.maximum(correlation[1:-2], correlation[3:])
    peaks = correlation[2:-1] >= np.maximum(neighbors + _PEAK * correlation[0], _RECURS * correlation[0])
    return (np.flatnonzero(peaks) + 2).tolist() if correlation[0] > 0 else []


def _repeats(pauses_us: Floats, period: int) -> Iterator[Floats]:
    """The newest (repeats, period), enough to rule out chance; nothing if there are fewer."""
    repeats = max(_FEWEST_REPEATS, math.ceil(_FEWEST_BITS / math.log2(period)))
    if len(pauses_us) >= repeats * period:
        yield pauses_us[-repeats * period :].reshape(repeats, period)


def _dispersion(repeats_us: Floats) -> float:
    """Variance of (repeats, period) within places over the total variance, both by their degrees of freedom.

    Pauses longer than the usual longest one of a repeat, such as stalls, count as that long.
    """
    repeats, period = repeats_us.shape
    rank = repeats_us.size - 1 - repeats // 2
    usual_longest_us = np.partition(repeats_us, rank, axis=None)[rank]
    clipped_us = np.minimum(repeats_us, usual_longest_us)
    all_of_it = float(clipped_us.var()) / (repeats * period - 1)
    within = float(clipped_us.var(axis=0).mean()) / (repeats * period - period)
    return within / all_of_it if all_of_it > 0 else 1.0


def _durations_us(starts_us: Floats, period: int) -> Floats:
    """Durations of the repeats, the newest of which ends with the last operation but one."""
    return np.diff(starts_us[(len(starts_us) - 1) % period :: period])


def _is_even(durations_us: Floats) -> bool:
    lower, middle, upper = np.percentile(durations_us, (25, 50, 75))
    return bool(upper - lower <= _SHORT_SPREAD * middle)


def _is_unbroken(durations_us: Floats) -> bool:
    """Whether short repeats follow each other for longer than the layers of any model do."""
    newest_us = durations_us[-_UNBROKEN_REPEATS:]
    if len(newest_us) < _UNBROKEN_REPEATS or not _is_even(newest_us):
        return False
    return float((newest_us > _BREAK_RATIO * np.median(newest_us)).mean()) <= _MOST_BREAKS_RATIO


def _longest(usual_us: Floats) -> _Shown:
    """The longest of (period,) typical pauses, and how much it stands out."""
    column = int(usual_us.argmax())
    longest, second = float(usual_us[column]), max(1.0, float(np.delete(usual_us, column).max()))
    return _Shown(len(usual_us), column, (longest + second) / 2, longest / second)


def _shown(repeats_us: Floats, least_contrast: float) -> _Shown | None:
    """The longest pause of (repeats, period), if it clearly stands out."""
    places = np.bincount(repeats_us.argmax(axis=1), minlength=repeats_us.shape[1])
    column = int(places.argmax())
    if places[column] < _SAME_PLACE_RATIO * len(repeats_us):
        return None
    usual_us = median(repeats_us, axis=0)
    longest = _longest(usual_us)
    if longest.column != column or longest.contrast < least_contrast:
        return None
    if usual_us[column] < _LEAST_SHARE * usual_us.sum():
        return None
    longer = repeats_us > longest.middle_us
    disturbed = np.delete(longer, column, axis=1).any(axis=1).mean()
    if longer[:, column].mean() < _LONGER_RATIO or disturbed > _DISTURBED_RATIO:
        return None
    return longest


def are_steady(starts_us: Floats) -> bool:
    """Whether single operations, which began at (n,) microseconds, are as even as steps.

    Intervals of a random walk are not those of steps, even if adjacent ones hardly differ: their differences
    grow with the root of the lag, as in the variance ratio of Lo and MacKinlay (1988, The Review of Financial
    Studies 1). Medians tolerate single changes.
    """
    intervals_us = np.diff(starts_us[-_MOST_INTERVALS - 1 :])
    if len(intervals_us) < _FEWEST_EVEN_INTERVALS or intervals_us.min() <= 0:
        return False
    if len(intervals_us) < _FEWEST_INTERVALS:
        return _are_even(intervals_us)
    lower, middle, upper, long = np.percentile(intervals_us[-_JUDGED_INTERVALS:], (25, 50, 75, 90))
    if upper - lower > _UNEVEN_RATIO * middle or long > _LONGEST_RATIO * middle:
        return False
    logarithms = np.log(intervals_us)
    near = float(np.median(np.abs(np.diff(logarithms))))
    far = float(np.median(np.abs(logarithms[_LAG:] - logarithms[:-_LAG])))
    return far <= _MOST_WANDERING * near


def _are_even(intervals_us: Floats) -> bool:
    """Whether a few intervals hardly differ, and not as those that wander: Bartels (1982, JASA 77, 40)."""
    lower, middle, upper = np.percentile(intervals_us, (25, 50, 75))
    if upper - lower > _EVEN_RATIO * middle:
        return False
    ranks = intervals_us.argsort().argsort().astype(np.float64)
    independence = np.square(np.diff(ranks)).sum() / np.square(ranks - ranks.mean()).sum()
    return bool(independence >= _LEAST_INDEPENDENCE)


def are_numbered(starts_us: Floats, numbers_us: Floats) -> bool:
    """Whether equally many reductions of a scalar, begun at (m,) times, are between any two (n,) operations.

    Optimizers reduce norms and counts once per step, on any communicator of the rank.
    """
    if not len(numbers_us):
        return False
    numbers_us = np.sort(numbers_us)
    within = starts_us[(starts_us >= numbers_us[0]) & (starts_us <= numbers_us[-1])]
    between = np.diff(np.searchsorted(numbers_us, within))
    if len(between) < _FEWEST_NUMBERED:
        return False
    usual = int(np.median(between))
    return usual > 0 and bool((between == usual).mean() >= _NUMBERED_RATIO)
