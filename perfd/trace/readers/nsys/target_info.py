"""What an export of Nsight Systems says of its session, GPUs and streams."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Container

from perfd.trace.readers.nsys.read_window import ReadWindow

_LATEST_NS = 1 << 63
"""Beyond the largest number of nanoseconds that SQLite has."""
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})")
_DROPPED = re.compile(r"events dropped:\s*(\d+)")
_STREAMS, _GPUS = "TARGET_INFO_CUDA_STREAM", "TARGET_INFO_GPU"


class TargetInfo:
    """Every method gives what the tables say, and nothing where there is none."""

    def __init__(
        self, connection: sqlite3.Connection, tables: Container[str], window: ReadWindow | None = None
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._window = window

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

    def captured_ns(self) -> tuple[int, int] | None:
        """From zero, where the collection began, to its end; of a large export, the window that is read."""
        if self._window:
            return self._window.start_ns, self._window.end_ns
        if "ANALYSIS_DETAILS" not in self._tables:
            return None
        row = self._connection.execute("SELECT duration FROM ANALYSIS_DETAILS").fetchone()
        return (0, int(row[0])) if row and row[0] else None

    def epoch_ns(self) -> int | None:
        """Wall time of zero; None if it is missing or impossible."""
        if "TARGET_INFO_SESSION_START_TIME" not in self._tables:
            return None
        row = self._connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        start_ns = row[0] if row else None
        if isinstance(start_ns, int | float) and 0 <= start_ns < _LATEST_NS:
            return int(start_ns)
        return None

    def schema(self) -> tuple[int, int] | None:
        """The version of the export's schema, where it says one."""
        table = next(
            (name for name in ("META_DATA_EXPORT", "EXPORT_META_DATA") if name in self._tables), None
        )
        if table is None:
            return None
        said = dict(self._connection.execute(f"SELECT name, value FROM {table}"))  # noqa: S608
        found = _VERSION.match(str(said.get("EXPORT_SCHEMA_VERSION", "")))
        return (int(found[1]), int(found[2])) if found else None

    def notes(self) -> tuple[str, ...]:
        """What of the export was not read, and what the profiler itself said went missing."""
        read = (self._window.note,) if self._window else ()
        if "DIAGNOSTIC_EVENT" not in self._tables:
            return read
        texts = [
            str(text)
            for (text,) in self._connection.execute(
                "SELECT text FROM DIAGNOSTIC_EVENT WHERE text LIKE '%CUPTI events dropped%'"
            )
        ]
        dropped = sum(int(found[1]) for text in texts if (found := _DROPPED.search(text)))
        if not dropped:
            return read
        return (
            *read,
            f"Nsight Systems dropped {dropped} incomplete GPU records when the session stopped.",
        )
