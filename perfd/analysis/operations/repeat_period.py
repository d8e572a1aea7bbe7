"""After how many operations a rank's sequence of sizes repeats: training repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_REPEATS = 3
"""What is there twice may be chance; three times in a row, over most of what is known, hardly is."""
_FEWEST_RATIO = 0.5
"""The repeats cover at least this part of the known operations, so that a run of equal sizes inside one step
is not taken for one."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The newest `length` sizes repeat every `period`."""

    period: int
    length: int


def repeat_period(sizes: Sequence[int]) -> Repeat | None:
    """The shortest period of the newest sizes, over the longest stretch that has one; None without any.

    `sizes` are of one rank's operations of one kind on one communicator, the newest last. Sizes that are all
    equal repeat every 1, which says nothing of steps: that is for the caller to judge.
    """
    reversed_sizes = sizes[::-1]
    # The prefix function: borders[i] is the longest proper prefix of the first i + 1 that also ends there, so
    # their shortest period is i + 1 - borders[i].
    borders = [0] * len(sizes)
    found: Repeat | None = None
    border = 0
    for index in range(len(sizes)):
        if index:
            while border and reversed_sizes[index] != reversed_sizes[border]:
                border = borders[border - 1]
            if reversed_sizes[index] == reversed_sizes[border]:
                border += 1
            borders[index] = border
        length = index + 1
        period = length - border
        if length >= FEWEST_REPEATS * period:
            found = Repeat(period, length)
    if found is None or found.length < _FEWEST_RATIO * len(sizes):
        return None
    return found
