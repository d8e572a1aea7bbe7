"""What each rank waits in each of the newest steps, in operations of any kind with any other rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.collectives.late_rank_cost import NEEDED_AT_ONCE
from perfd.analysis.data.job_data import Bools, Floats, StepTable
from perfd.analysis.data.robust_stats import median_of
from perfd.analysis.operations.communicator_waits import CommunicatorBatch

_LEAST_PER_STEP = 0.7
"""Rarer operations cannot be assigned to a step."""
_RESUMED = 3.0
"""Times that operations since the start differ from their pace where the log's steps began before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsByStep:
    """What each rank waits, (steps, world), the newest step last, in seconds; NaN where that is not held."""

    summed_s: Floats
    """In all operations of a step."""
    longest_s: Floats
    """Of those that run beside computation only in the longest, since one lag may be waited for in each."""


def waits_by_step(
    stacks: Sequence[CommunicatorBatch],
    world: int,
    steps: StepTable,
    step_s: float,
    newest: int,
    *,
    done: float | None = None,
) -> WaitsByStep:
    """Of the `newest` steps, by the numbers of operations.

    A rank that reports no operations is NaN throughout.
    `done` is how many steps there were since the first operation, where that is known better than by `steps`.
    """
    at_once, summed, longest = (np.zeros((newest, world)) for _ in range(3))
    known, reporting = np.zeros(world, dtype=np.int64) + newest, np.zeros(world, dtype=np.bool_)
    of_log = max(int(steps.step[-1]), 1) if len(steps) else 1
    rates = [_per_step(stack, done or of_log, step_s) for stack in stacks]
    ratios = np.concatenate([counted / paced for counted, paced in rates] or [np.ones(1)])
    middle = median_of(ratios)
    resumed = done is None and (middle is None or not 1 / _RESUMED <= middle <= _RESUMED)
    for stack, (counted, paced) in zip(stacks, rates, strict=True):
        for row, length in enumerate(stack.collectives.lengths.tolist()):
            reporting[stack.ranks[row]] |= _reporting(stack.collectives.durations_s[row, :length])
            per_step = float((paced if resumed else counted)[row])
            if not per_step >= _LEAST_PER_STEP or not length:
                continue
            # By their numbers, since some may be lost.
            numbers = stack.collectives.sequence[row, :length]
            ago = ((numbers[-1] - numbers) / per_step).astype(np.int64)
            known[stack.ranks[row]] = np.minimum(known[stack.ranks[row]], int(ago[0]))
            recent = slice(np.count_nonzero(ago >= newest), length)
            ago = ago[recent]
            matched = stack.parts.last_arriver[row, recent] >= 0
            of_operations_s = np.where(matched[:, None], stack.parts.wait_s[row, recent], 0.0)
            first = np.flatnonzero(np.diff(ago, prepend=-1))
            of_steps = np.ix_(newest - 1 - ago[first], stack.ranks[row])
            if not stack.matched or stack.names[row] in NEEDED_AT_ONCE:
                at_once[of_steps] += np.add.reduceat(of_operations_s, first)
            else:
                summed[of_steps] += np.add.reduceat(of_operations_s, first)
                longest[of_steps] = np.maximum(longest[of_steps], np.maximum.reduceat(of_operations_s, first))
    at_once[np.arange(newest)[:, None] < newest - known] = np.nan
    at_once[:, ~reporting] = np.nan
    return WaitsByStep(summed_s=at_once + summed, longest_s=at_once + longest)


def _reporting(durations_s: Floats) -> Bools:
    """(g,): which ranks report any of (n, g) operations."""
    # Usually each has reported the newest one: to look at all of them takes far longer.
    newest = np.asarray(np.isfinite(durations_s[-1:]).any(axis=0))
    return newest if newest.all() else np.asarray(np.isfinite(durations_s).any(axis=0))


def _per_step(stack: CommunicatorBatch, done: float, step_s: float) -> tuple[Floats, Floats]:
    """(c,) twice: how many operations are of one step, counted since the job's start, and by their pace."""
    reported, at = stack.collectives, np.arange(len(stack.ranks))
    last = reported.sequence[at, np.maximum(reported.lengths - 1, 0)]
    return (last + 1) / done, reported.operations_per_s * step_s
