"""Tables of several nodes that differ only in their numbers, with what is computed of all at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats
from perfd.model import ColumnBlock, GpuColumn, SampleTable, Scope

HISTORY_COLUMNS = frozenset(column.value for column in GpuColumn)
"""The columns that analysis and charts read; of all others only the newest value is kept."""

_KEPT_PLACES = 64
"""Lists of columns whose places are remembered."""


@dataclass(slots=True, eq=False, repr=False)
class AlikeBlock(ColumnBlock):
    """The columns of one of them."""

    kept: NDArray[np.float32]
    """Rows by `HISTORY_COLUMNS`, of a table of GPUs, else empty."""
    all_known: bool
    """No value is NaN."""
    newest_unix_ns: int
    """The latest of its times."""


def alike_tables(
    scope: Scope,
    entities: tuple[str, ...],
    metrics: tuple[str, ...],
    times_ns: NDArray[np.int64],
    values: Floats,
) -> list[SampleTable]:
    """A table of each row of `times_ns`, with its `values` as tables by metrics by entities."""
    # The largest would be NaN.
    known = (~np.isnan(values.max(axis=(1, 2)))).tolist()
    kept = np.empty((len(values), 0), np.float32)
    if scope is Scope.GPU:
        # A reading too large for float32 becomes infinite; the batch is not refused for it.
        with np.errstate(over="ignore"):
            kept = values.take(_kept_places(metrics), 1).transpose(0, 2, 1).astype(np.float32, order="C")
    blocks, size_bytes = values.tobytes(), values[0].nbytes
    times, newest_ns = times_ns.tolist(), times_ns.max(axis=1).tolist()
    return [
        SampleTable(
            scope=scope,
            times_unix_ns=times[at],
            entities=entities,
            columns=AlikeBlock(
                metrics,
                blocks[at * size_bytes : (at + 1) * size_bytes],
                len(entities),
                kept[at],
                known[at],
                newest_ns[at],
            ),
        )
        for at in range(len(values))
    ]


@lru_cache(maxsize=_KEPT_PLACES)
def _kept_places(metrics: tuple[str, ...]) -> NDArray[np.intp]:
    return np.array([place for place, name in enumerate(metrics) if name in HISTORY_COLUMNS], np.intp)
