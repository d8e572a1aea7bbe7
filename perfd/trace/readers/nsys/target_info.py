"""What an export of Nsight Systems says of the machine: its GPUs and the streams of its processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Container

_STREAMS, _GPUS = "TARGET_INFO_CUDA_STREAM", "TARGET_INFO_GPU"


class TargetInfo:
    """Every method gives what the tables say, and nothing where there is none."""

    def __init__(self, connection: sqlite3.Connection, tables: Container[str]) -> None:
        self._connection = connection
        self._tables = tables

    def stream_priorities(self) -> dict[tuple[int, int], int]:
        """By process id and stream; the lowest number is served first."""
        if _STREAMS not in self._tables:
            return {}
        rows = self._connection.execute(f"SELECT processId, streamId, priority FROM {_STREAMS}")  # noqa: S608
        # They are 32 bits with a sign that exports lose.
        return {
            (int(process), int(stream)): (int(priority) + (1 << 31)) % (1 << 32) - (1 << 31)
            for process, stream, priority in rows
        }

    def multiprocessors(self) -> dict[int, int]:
        """How many each GPU has, by the node's number of it."""
        columns = self._connection.execute(f"PRAGMA table_info({_GPUS})")
        if not any(row[1] == "smCount" for row in columns):
            return {}
        rows = self._connection.execute(f"SELECT id, smCount FROM {_GPUS} WHERE smCount > 0")  # noqa: S608
        return {int(gpu): int(count) for gpu, count in rows}
