"""Peers in a communicator of several expert-parallel groups, each of which has a rank of every role.

Dense gradients of a mixture of experts are reduced over all its replicas, by ranks with different experts.
Such an operation lets ranks go that their peers, those with the same experts, would have waited for in the
reduction of the experts' gradients that follows. Ranks of one expert group exchange tokens in each layer, so
that all of them come late with one that is slow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.operations.communicator_waits import CommunicatorBatch, WaitSplit, blames_of

_Number = TypeVar("_Number", np.float64, np.int64)


def balanced(roles: Ints) -> Bools:
    """(c,): whether a row of (c, g) has several roles, each equally often and more than once.

    Of rows with other numbers of roles than the first such row, none is.
    """
    ordered = np.sort(roles, axis=1)
    distinct = 1 + np.count_nonzero(np.diff(ordered, axis=1), axis=1)
    found = np.zeros(len(roles), dtype=np.bool_)
    several = (distinct > 1) & (distinct < roles.shape[1])
    for number in distinct[several][:1].tolist():
        peers, rest = divmod(roles.shape[1], number)
        if not rest:
            runs = ordered.reshape(len(roles), number, peers)
            found = (distinct == number) & (runs == runs[..., :1]).all(axis=(1, 2))
    return found


def peers_in_expert_groups(stack: CommunicatorBatch, rows: Ints, roles: Ints) -> CommunicatorBatch:
    """Balanced communicators, the `rows` of a stack, as communicators of peers: one for each role of each.

    `roles` are those of all members of the stack. A rank of the last expert group is waited for by its peers,
    but for no longer than the operation would begin earlier without that group.
    """
    order = np.lexsort((stack.ranks[rows], roles[rows]))
    first = roles[rows[0], order[0]]
    peers = int(np.count_nonzero(first == first[0]))
    ranks = np.take_along_axis(stack.ranks[rows], order, axis=1).reshape(len(rows), -1, peers)
    of_each = np.repeat(rows, ranks.shape[1])

    def by_role(by_rank: Floats) -> Floats:
        turned = np.take_along_axis(by_rank[rows], order[:, None], axis=2)
        return turned.reshape(*turned.shape[:2], -1, peers)

    of_all = stack.collectives
    parts = _of_roles(
        WaitSplit(
            transfer_s=stack.parts.transfer_s[rows],
            wait_s=by_role(stack.parts.wait_s),
            last_arriver=stack.parts.last_arriver[rows],
        )
    )
    collectives = replace(
        of_all,
        communicators=[of_all.communicators[row] for row in of_each.tolist()],
        ranks=ranks.reshape(-1, peers),
        lengths=of_all.lengths[of_each],
        sequence=of_all.sequence[of_each],
        durations_s=_rows(by_role(of_all.durations_s)),
        size_bytes=of_all.size_bytes[of_each],
        gpu_starts_ns=None,
        kernel_ratio=_rows(by_role(of_all.kernel_ratio[:, None]))[:, 0],
        operations_per_s=of_all.operations_per_s[of_each],
        best_s_per_byte=of_all.best_s_per_byte[of_each],
        best_size_bytes=of_all.best_size_bytes[of_each],
        counted_s=None if of_all.counted_s is None else of_all.counted_s[of_each],
        renewed=None if of_all.renewed is None else of_all.renewed[of_each],
        timings=[of_all.timings[row] for row in of_each.tolist()],
        sources=[of_all.sources[row] for row in of_each.tolist()],
        methods=None,
    )
    return replace(
        stack,
        collectives=collectives,
        names=stack.names[of_each],
        parts=parts,
        blames=blames_of(parts),
        unseen_ratio=np.zeros(collectives.ranks.shape),
    )


def _of_roles(parts: WaitSplit) -> WaitSplit:
    """Of waits that are (c, n, roles, expert groups); the result has an entry for each role."""
    came_s = -np.nan_to_num(parts.wait_s)
    by_group = came_s.max(axis=2)
    last = by_group.argmax(axis=2)
    of_last = last[:, :, None, None]
    own_s = np.take_along_axis(came_s, of_last, axis=3)[..., 0]
    # Without that group the operation would begin with the latest rank of the next one.
    saved_s = by_group.max(axis=2) - np.partition(by_group, -2, axis=2)[..., -2]
    waits_s = np.clip(own_s[..., None] - came_s, 0.0, saved_s[..., None, None])
    matched = (parts.last_arriver >= 0)[..., None]
    late = waits_s.max(axis=3) > 0
    # Where the last group's rank is not the last of its role, its peers wait for none.
    column = np.where(late, last[..., None], came_s.argmax(axis=3))
    waits_s = np.where((matched & late)[..., None], waits_s, 0.0)
    return WaitSplit(
        transfer_s=_rows(np.broadcast_to(parts.transfer_s[..., None], column.shape)),
        wait_s=_rows(waits_s),
        last_arriver=_rows(np.where(matched, column, -1)),
    )


def _rows(by_role: NDArray[_Number]) -> NDArray[_Number]:
    """(c, n, roles, ...) as (c * roles, n, ...)."""
    turned = np.moveaxis(by_role, 2, 1)
    return np.ascontiguousarray(turned.reshape(-1, *turned.shape[2:]))
