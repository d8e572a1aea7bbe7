"""After how many operations a rank's sequence of sizes repeats: training repeats itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints

FEWEST_REPEATS = 3
"""What is there twice may be chance; three times in a row, over most of what is known, hardly is."""
_FEWEST_RATIO = 0.5
"""The repeats cover at least this part of the known operations, so that a run of equal sizes inside one step
is not taken for one."""
_COMPARED = 8
"""Newest sizes that are compared first, to reject most periods early; it does not change results."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The newest `length` sizes repeat every `period`."""

    period: int
    length: int


def repeat_period(sizes: Floats | Ints) -> Repeat | None:
    """The shortest period in the longest stretch of newest sizes that repeats; None if nothing repeats.

    `sizes` (n,) are those of one rank's operations of one kind on one communicator, newest last. Equal sizes
    have period 1, which does not identify steps: the caller must handle that.
    """
    newest_first = sizes[::-1]
    most = len(sizes) // FEWEST_REPEATS
    candidates = np.arange(1, most + 1)
    for place in range(min(most, _COMPARED)):
        alike = newest_first[candidates + place] == newest_first[place]
        candidates = candidates[alike | (place >= (FEWEST_REPEATS - 1) * candidates)]
    lengths: list[int] = []
    for period in candidates.tolist():
        differing = newest_first[period:] != newest_first[:-period]
        first = int(differing.argmax())
        lengths.append(period + first if differing[first] else len(sizes))
        if lengths[-1] == len(sizes):
            break
    longest = max(
        (
            length
            for period, length in zip(candidates.tolist(), lengths, strict=False)
            if length >= FEWEST_REPEATS * period
        ),
        default=0,
    )
    if not longest or longest < _FEWEST_RATIO * len(sizes):
        return None
    shortest = next(place for place, length in enumerate(lengths) if length >= longest)
    return Repeat(int(candidates[shortest]), longest)
