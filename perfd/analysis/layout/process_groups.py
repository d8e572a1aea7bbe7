"""What a communicator is for, by its members and the job's layout.

Ranks are in Megatron's order, tensor parallelism fastest and pipeline stages slowest. Source:
`megatron/core/parallel_state.py`, whose default order is tp-cp-ep-dp-pp; expert groups lie inside the
data-parallel ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Ints
from perfd.model import ParallelLayout

PAIR_OPERATION = "SendRecv"
"""What perfd calls a send and the receive that it is matched with."""
ALL_TO_ALL = "AlltoAll"
ALL_REDUCE = "AllReduce"
"""Of gradients and losses: over context groups attention sends, gathers or exchanges, but sums nothing."""
WORLD = "world"
Names: TypeAlias = NDArray[np.object_]
"""A name for each communicator, or None."""


@dataclass(frozen=True, slots=True)
class _Dimension:
    name: str
    size: int
    stride: int


def group_name(ranks: Sequence[int], parallel: ParallelLayout, operation: str = "") -> str | None:
    """`tp`, `cp`, `dp`, `dp_cp`, `ep`, `edp`, `pp` or `world`; None when the members fit none of them."""
    name: str | None = group_names(np.asarray(ranks, dtype=np.int64)[None], parallel, operation)[0]
    return name


def group_names(ranks: Ints, parallel: ParallelLayout, operation: str = "") -> Names:
    """The same for c communicators of g ranks each, (c, g). `operation` settles what members leave open.

    Of `SendRecv` they are pairs out of a group, such as neighboring stages of a pipeline.
    """
    communicators, members = ranks.shape
    names: Names = np.full(communicators, None, dtype=object)
    if members < 2:
        return names
    if operation == PAIR_OPERATION:
        return _names_of_pairs(np.minimum(*ranks.T), np.maximum(*ranks.T), parallel)
    ordered = np.sort(ranks, axis=1)
    stride = ordered[:, 1] - ordered[:, 0]
    even = np.ones(communicators, dtype=np.bool_)
    if members > 2:
        even = (np.diff(ordered, axis=1) == stride[:, None]).all(axis=1)
    # The first name that fits is the one that stays, so the last is written first.
    for one in reversed(_dimensions(parallel, operation)):
        if one.size == members:
            names[even & (stride == one.stride)] = one.name
    if members == parallel.world_size:
        names[even & (ordered[:, 0] == 0) & (stride == 1)] = WORLD
    return names


def dimension_name(name: str | None, parallel: ParallelLayout, operation: str = "") -> str | None:
    """The parallel dimension that a group of this name serves: `tp`, `cp`, `dp`, `ep`, `pp` or `world`.

    `dp_cp` and `edp` reduce gradients, as `dp` does. All ranks together are those of the one dimension that
    spans the job; not of a pipeline, whose stages send, and reduce nothing.
    """
    if name != WORLD:
        return "dp" if name in {"dp_cp", "edp"} else name
    tp, cp, dp, ep = (size or 1 for size in (parallel.tp, parallel.cp, parallel.dp, parallel.ep))
    spanning = {"tp": tp, "cp": cp, "dp": dp * cp}
    if operation == ALL_REDUCE:
        del spanning["cp"]
    if operation == ALL_TO_ALL:
        spanning = {"ep": ep, **spanning}
    return next((one for one, size in spanning.items() if size == parallel.world_size), WORLD)


def _names_of_pairs(low: Ints, high: Ints, parallel: ParallelLayout) -> Names:
    names: Names = np.full(len(low), None, dtype=object)
    for one in reversed(_dimensions(parallel, PAIR_OPERATION)):
        block = one.stride * one.size
        if one.size > 1:
            names[(low // block == high // block) & ((high - low) % one.stride == 0)] = one.name
    return names


def _dimensions(parallel: ParallelLayout, operation: str) -> list[_Dimension]:
    """The groups of a layout, the more usual name first where two have the same members."""
    tp, cp, dp, ep = parallel.tp, parallel.cp or 1, parallel.dp, parallel.ep or 1
    if not tp:
        return []
    tensor, context = _Dimension("tp", tp, 1), _Dimension("cp", cp, tp)
    # With one replica the ranks of a context group are those that reduce gradients.
    found = [tensor] if dp == 1 and operation == ALL_REDUCE else [tensor, context]
    if dp:
        data = [_Dimension("dp", dp, tp * cp), _Dimension("dp_cp", dp * cp, tp)]
        expert = [_Dimension("ep", ep, tp), _Dimension("edp", dp * cp // ep, tp * ep)] if ep > 1 else []
        # Tokens are exchanged over the experts' group, gradients are reduced over the data's.
        found += [*expert, *data] if operation in {ALL_TO_ALL, PAIR_OPERATION} else [*data, *expert]
        if parallel.pp:
            found.append(_Dimension("pp", parallel.pp, tp * cp * dp))
    return found
