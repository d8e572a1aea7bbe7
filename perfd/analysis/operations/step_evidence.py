"""Whether the reductions of all gradients that repeat are steps, by the pauses after each of them.

Most frameworks reduce gradients once a step. A loop that does so in each micro-batch, or that updates its
parameters several times before it acts again, repeats the same operations more often. An optimizer runs in
each pause of the former, in some of the latter only. A loop that averages parameters instead of
gradients repeats them more rarely: nothing of a backward pass runs between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median, near_sigma_of
from perfd.analysis.operations.step_boundaries import LEAST_RATIO, longer_each, still_ahead
from perfd.model import StepDoubt

_OPTIMIZER_US_PER_BYTE = 7 / 3.35e6
"""Adam reads gradient, parameter and two moments, and writes three of them, at the 3.35 TB/s of an H100. In
the recording `unsynced2` it took four times as long."""
_OPTIMIZER_SHORTER = 0.5
"""By which it may be shorter, with a simpler optimizer or faster memory. Chosen."""
_FEWEST_PAUSES = 64
"""In fewer, the only pause of a step of as many parts may not have come yet."""
_NEARBY = 9
"""Pauses that a pause is compared with. Chosen."""
_MOST_PARTS = 64
"""Of a step, as micro-batches or updates; more are not looked for."""
_MOSTLY = 0.8
"""Of the pauses in which an optimizer would run, those that are longer: others may seem shorter by chance."""
_STEADY_RATIO = 0.5
"""Of an optimizer's time, by which pauses may vary before it would not show."""
_BURST_RATIO = 0.02
"""Of a repeat, all gaps between its operations: a backward pass takes two thirds of a micro-batch, and more
than this of a step of up to 33 of them."""


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """What pauses show of reductions of all gradients."""

    together: tuple[int, int] | None
    """After how many pauses an optimizer seems to run, and after which of the first ones; None if unknown."""
    doubt: StepDoubt | None


def evidence_of(
    pauses_us: Floats, leads_us: Floats, *, each_us: float, moved_bytes: float, numbered: bool
) -> StepEvidence:
    """Judge (n,) pauses after repeats that take `each_us` and reduce so many bytes.

    `leads_us` (n,) is how far the host was ahead of the GPU after them; `numbered` whether a number, such as
    the norm of gradients, is reduced once a repeat.
    """
    optimizer_us = _OPTIMIZER_US_PER_BYTE * moved_bytes
    least_us = min(LEAST_RATIO * each_us, _OPTIMIZER_SHORTER * optimizer_us)
    shown = longer_each(pauses_us, least_us)
    if shown is not None:
        count, last = shown
        ends = np.arange(len(pauses_us)) % count == last
        longer_us = float(median(pauses_us[ends])) - float(median(pauses_us[~ends]))
        # Without such a lead, it is the host that lets the GPU wait.
        most_us = min(each_us, float(median(leads_us[ends])))
        if longer_us <= most_us and still_ahead(leads_us, ends):
            return StepEvidence(shown, StepDoubt.MICRO_BATCHES)
    if numbered:
        return StepEvidence(None, None)
    sure = shown is None and _without_parts(pauses_us, optimizer_us)
    return StepEvidence(None, None if sure else StepDoubt.MICRO_BATCHES)


def _without_parts(pauses_us: Floats, optimizer_us: float) -> bool:
    """Whether no number of repeats can be a step whose optimizer runs in one of its (n,) pauses."""
    if len(pauses_us) < _FEWEST_PAUSES or near_sigma_of(pauses_us, 1) > _STEADY_RATIO * optimizer_us:
        return False
    # At most half the pauses have an optimizer, also of those nearby: a fault makes all longer for a while.
    nearby_us = np.lib.stride_tricks.sliding_window_view(np.pad(pauses_us, _NEARBY // 2, "reflect"), _NEARBY)
    usual_us = np.partition(nearby_us, _NEARBY // 4, axis=1)[:, _NEARBY // 4]
    longer = pauses_us > usual_us + _OPTIMIZER_SHORTER * optimizer_us
    places = np.flatnonzero(longer)
    for count in range(2, _MOST_PARTS + 1):
        each = np.bincount(places % count, minlength=count)
        of = np.bincount(np.arange(len(pauses_us)) % count, minlength=count)
        if (each >= _MOSTLY * of).any():
            return False
    return True


def come_at_once(starts_us: Floats, ends_us: Floats, period: int) -> bool:
    """Whether `period` (n,) operations, whose last one is the last of a repeat, have nothing between them."""
    repeats = len(starts_us) // period
    if period < 2 or repeats < 2:
        return False
    starts_us, ends_us = (one[-repeats * period :].reshape(repeats, period) for one in (starts_us, ends_us))
    gaps_us = np.maximum(0.0, starts_us[:, 1:] - ends_us[:, :-1]).sum(axis=1)
    each_us = (ends_us[-1, -1] - ends_us[0, -1]) / (repeats - 1)
    return bool(float(median(gaps_us)) < _BURST_RATIO * each_us)
