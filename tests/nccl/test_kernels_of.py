"""Operations ordered by kernel, against a plain account of the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl.operations.operation_columns import kernels_of

OPERATIONS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 70_000]), st.integers(0, 6)), max_size=30)


def plainly(operations: list[tuple[int, int]]) -> list[list[int]]:
    """The places of each kernel's operations: by family, then by the first of them."""
    kernels: dict[tuple[int, int, int], list[int]] = {}
    for place, (family, group) in enumerate(operations):
        kernels.setdefault((family, group, place if group == 0 else -1), []).append(place)
    return sorted(kernels.values(), key=lambda places: (operations[places[0]][0], places[0]))


@given(OPERATIONS | OPERATIONS.map(lambda some: sorted(some, key=lambda one: one[1])))
def test_operations_of_a_kernel_are_adjacent_whatever_their_order(operations: list[tuple[int, int]]) -> None:
    families = np.array([family for family, _ in operations], dtype=np.int64)
    groups = np.array([group for _, group in operations], dtype=np.uint64)
    found = kernels_of(families, groups)

    bounds = [*found.first.tolist(), len(operations)]
    order = found.order.tolist()
    kernels = [order[low:high] for low, high in pairwise(bounds)]
    assert [one for one in kernels if one] == plainly(operations)
