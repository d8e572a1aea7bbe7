"""Which ranks have the same work: those of one pipeline stage, tensor position and set of experts.

Only these are peers. A pipeline's last stage is late by design, the first rank of a tensor group reads data
for the others, and a rank whose experts are liked gets more tokens: none of that is a fault of the rank.
"""

from __future__ import annotations

import numpy as np

from perfd.analysis.data.job_data import Ints
from perfd.model import ParallelLayout

ALONE = -1
"""The role of a rank whose work is unknown."""


def roles_of(ranks: Ints, stages: Ints, parallel: ParallelLayout) -> Ints:
    """A number for each rank's role, the same for ranks with the same work; `ALONE` where it is unknown.

    Ranks are in Megatron's order (tp-cp-ep-dp-pp); `stages` is the stage of each, -1 where unknown.
    """
    tensor, experts = parallel.tp or 1, parallel.ep or 1
    # Expert groups lie inside the data-parallel ones and are as far apart as their ranks.
    place = ranks % (tensor * experts)
    return np.where(stages < 0, ALONE, stages * tensor * experts + place)


def role_name(rank: int, parallel: ParallelLayout) -> str:
    """The role of a rank in words, such as `stage 1, tensor rank 0`; empty where all ranks have the same."""
    tensor, experts = parallel.tp or 1, parallel.ep or 1
    words = []
    if (parallel.pp or 1) > 1 and parallel.world_size:
        words.append(f"stage {rank // (parallel.world_size // (parallel.pp or 1))}")
    if tensor > 1:
        words.append(f"tensor rank {rank % tensor}")
    if experts > 1:
        words.append(f"expert rank {rank // tensor % experts}")
    return ", ".join(words)
