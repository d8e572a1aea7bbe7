"""After how many operations of one size the pauses between them repeat: buckets of gradients may be alike.

The reductions of a step follow each other as the backward pass finishes layers; before the first one of the
next step there are optimizer, loading of data, and the forward pass. So n operations come close together,
then a longer pause, and that again and again. Random operations have no such pause at each n-th place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats

_FEWEST_REPEATS = 10
_FEWEST_BITS = 40.0
"""Repeats times the logarithm of n to base 2: what random pauses show so is hardly seen in a job's life."""
_LEAST_REPEAT_US = 50_000.0
"""Layers of a tensor group repeat faster than this, and steps slower."""
_LEAST_CONTRAST = 2.0
"""The pause after a repeat, over the longest one inside it: micro-batches differ by less from steps."""
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
_FEWEST_INTERVALS = 9


@dataclass(frozen=True, slots=True)
class PausePattern:
    """Operations repeat in groups."""

    period: int
    length: int
    """The newest operations that repeat so."""
    after_last: int
    """How many operations came since the newest group that is complete."""


def pause_pattern(starts_us: Floats, ends_us: Floats) -> PausePattern | None:
    """What (n,) operations of one rank, none left out, repeat by their pauses; None if that does not show."""
    if len(starts_us) <= 2 * _FEWEST_REPEATS:
        return None
    pauses_us = np.maximum(starts_us[1:] - ends_us[:-1], 0.0)
    each_us = max(1.0, float(ends_us[-1] - ends_us[0]) / len(pauses_us))
    fewest = max(2, math.ceil(_LEAST_REPEAT_US / each_us))
    found: tuple[float, int, int, float] | None = None
    for period in range(fewest, len(pauses_us) // _FEWEST_REPEATS + 1):
        repeats = max(_FEWEST_REPEATS, math.ceil(_FEWEST_BITS / math.log2(period)))
        if len(pauses_us) >= repeats * period:
            shown = _shown(pauses_us[-repeats * period :].reshape(repeats, period))
            if shown is not None and (found is None or shown[0] > found[0]):
                contrast, column, middle_us = shown
                found = contrast, period, column, middle_us
    if found is None:
        return None
    _, period, column, middle_us = found
    repeated = pauses_us[len(pauses_us) % period :].reshape(-1, period)
    longer = repeated[:, column] > middle_us
    # Two repeats in a row without it are of another time, as before a group of another number.
    breaks = np.flatnonzero(~longer[1:] & ~longer[:-1])
    first = int(breaks[-1]) + 2 if len(breaks) else 0
    return PausePattern(period, (len(repeated) - first) * period, period - 1 - column + 1)


def _shown(repeats_us: Floats) -> tuple[float, int, float] | None:
    """By how much the pause of one column of (repeats, period) is longer, which one, and the middle."""
    places = np.bincount(repeats_us.argmax(axis=1), minlength=repeats_us.shape[1])
    column = int(places.argmax())
    if places[column] < _SAME_PLACE_RATIO * len(repeats_us):
        return None
    usual_us = np.median(repeats_us, axis=0)
    inside_us = np.delete(usual_us, column)
    longest, second = float(usual_us[column]), max(1.0, float(inside_us.max()))
    if longest < _LEAST_CONTRAST * second or longest < _LEAST_SHARE * float(usual_us.sum()):
        return None
    middle_us = (longest + second) / 2
    longer = repeats_us > middle_us
    disturbed = np.delete(longer, column, axis=1).any(axis=1).mean()
    if longer[:, column].mean() < _LONGER_RATIO or disturbed > _DISTURBED_RATIO:
        return None
    return longest / second, column, middle_us


def are_steady(starts_us: Floats) -> bool:
    """Whether single operations come as evenly as steps do, by when (n,) of them began."""
    intervals_us = np.diff(starts_us)
    if len(intervals_us) < _FEWEST_INTERVALS:
        return False
    lower, middle, upper, long = np.percentile(intervals_us, (25, 50, 75, 90))
    return bool(upper - lower <= _UNEVEN_RATIO * middle and long <= _LONGEST_RATIO * middle)
