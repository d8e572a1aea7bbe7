"""Whether an exported report holds GPU work, and of which processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from perfd.errors import CaptureError

_GPU_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    # With CUDA graphs traced as a whole there are no kernels of their own.
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)


def kernels_by_process(sqlite: Path) -> Mapping[int, int]:
    """How many kernels (or graph launches) each pid has; raises `CaptureError` when it cannot be read.

    In `globalPid` the pid is in bits 24 to 47 (Nsight Systems' SQLite schema reference).
    """
    counts: dict[int, int] = {}
    try:
        with closing(sqlite3.connect(f"file:{sqlite}?mode=ro", uri=True)) as database:
            # Tables are made only for what was seen.
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            there = {name for (name,) in database.execute(query)}
            for table in _GPU_TABLES:
                if table in there:
                    query = f"SELECT (globalPid >> 24) & 16777215, count(*) FROM {table} GROUP BY 1"  # noqa: S608
                    for pid, count in database.execute(query):
                        counts[pid] = counts.get(pid, 0) + count
    except sqlite3.Error as error:
        raise CaptureError(f"The exported report cannot be read: {error}.") from error
    return counts
