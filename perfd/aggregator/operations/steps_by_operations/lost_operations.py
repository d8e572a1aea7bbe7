"""Operations that a rank did not report, by what its stream repeats: sequence numbers show how many."""

from __future__ import annotations

import numpy as np

from perfd.aggregator.operations.steps_by_operations.operation_reports import (
    END,
    QUEUED,
    REPORTED,
    SIZE,
    START,
)
from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.operations.repeat_period import Repeat, repeat_period

_FEWEST_REPEATS = 10
"""Before the gap and in the report together: as many as before steps are reported."""
_PARTS = (1, 2, 4)
"""All operations before are searched for what repeats, then the newest half and quarter. Chosen."""
_MOST_LOST_RATIO = 0.5
"""Of the operations before the gap: more may be another phase of the job, as an evaluation."""


def with_lost(held: Floats, newest: int, columns: Floats, sequences: Ints) -> Floats | None:
    """The (5, n) `columns` of a report with estimates for the operations that it lacks.

    `held` are the operations before, none left out, the last of which has the sequence number `newest`.
    None where what they repeat does not go on in the report.
    """
    numbers = sequences - newest
    if not len(numbers) or numbers[0] < 1 or (np.diff(numbers) < 1).any():
        return None
    count = int(numbers[-1])
    if count - len(numbers) > _MOST_LOST_RATIO * held.shape[1]:
        return None
    found = _repeat(held[SIZE])
    if found is None or found.period == 1 or found.length + len(numbers) < _FEWEST_REPEATS * found.period:
        return None
    before = held.shape[1]
    filled = np.full((len(held), before + count), np.nan)
    filled[:, :before] = held
    filled[REPORTED, before:] = 0.0
    filled[SIZE, before:] = np.resize(held[SIZE, -found.period :], count)
    if (filled[SIZE, before - 1 + numbers] != columns[SIZE]).any():
        return None
    filled[:, before - 1 + numbers] = columns
    for place in (np.flatnonzero(filled[REPORTED, before:] == 0.0) + before).tolist():
        _estimate(filled, place, found.period)
    return filled[:, before:]


def _repeat(sizes: Floats) -> Repeat | None:
    parts = (repeat_period(sizes[-(len(sizes) // part) :]) for part in _PARTS if len(sizes) >= part)
    return next((one for one in parts if one is not None), None)


def _estimate(filled: Floats, place: int, period: int) -> None:
    """When an operation ran, by the same one of the repeat before; at the latest when the next one began."""
    pause_us = max(0.0, filled[START, place - period] - filled[END, place - period - 1])
    lasted_us = filled[END, place - period] - filled[START, place - period]
    later = filled[START, place + 1 :]
    limit_us = later[np.isfinite(later)].min(initial=np.inf)
    filled[START, place] = min(filled[END, place - 1] + pause_us, limit_us)
    filled[END, place] = min(filled[START, place] + lasted_us, limit_us)
    filled[QUEUED, place] = filled[QUEUED, place - period]
