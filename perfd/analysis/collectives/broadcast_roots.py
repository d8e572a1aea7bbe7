"""Ranks that hand something to their group by broadcast in every step, such as the batch to a tensor group.

Where a job's layout is unknown, its communicators do not show for which of them a broadcast is by design.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.operations.communicator_waits import BROADCAST, CommunicatorBatch
from perfd.model import ParallelLayout

_FEWEST = 20
"""Broadcasts of a communicator: a model's parameters are broadcast once, in a few. Chosen."""
_ALONGSIDE = 0.5
"""Of the longest time over which operations were counted, that of broadcasts at least: those of a job's start
are over. Chosen."""


def broadcast_roots(stacks: Sequence[CommunicatorBatch], parallel: ParallelLayout) -> tuple[int, ...]:
    """The first ranks of communicators with broadcasts in each step, in order; none of a known layout.

    All frameworks let the first rank of a group read the data for it. Durations do not show the root: while
    another rank is slow, that one is the last.
    """
    if parallel.tp is not None:
        return ()
    longest_s = max((_counted_s(stack).max(initial=0.0) for stack in stacks), default=0.0)
    found: set[int] = set()
    for stack in stacks:
        if stack.operation == BROADCAST and stack.ranks.shape[1] > 1:
            often = stack.collectives.lengths >= _FEWEST
            lasting = _counted_s(stack) >= _ALONGSIDE * longest_s
            found.update(stack.ranks[often & lasting].min(axis=1).tolist())
    return tuple(sorted(found))


def _counted_s(stack: CommunicatorBatch) -> Floats:
    counted_s = stack.collectives.counted_s
    return np.zeros(len(stack.ranks)) if counted_s is None else np.nan_to_num(counted_s)
