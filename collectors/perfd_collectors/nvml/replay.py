"""Plays the GPU samples of a recording."""

from __future__ import annotations

import gzip
import logging
import math
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from perfd.collector import Settings
from perfd.errors import RecordingError, reason_of
from perfd.model import Record, SampleTable, Scope
from perfd_collectors.nvml.columns import NAMES
from perfd_collectors.nvml.jsonl_format import RecordedRow, decode_lines

log = logging.getLogger(__name__)


class RecordedNvml:
    """Plays an `nvml.jsonl` (or `.gz`): `collect` returns, as one table, the rows due by the clock.

    The file is read as a whole. Invalid lines are skipped and counted in `skipped_lines`.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._clock = settings.clock
        rows, self.skipped_lines = _read(path)
        self._times = [row.time_unix_ns for row in rows]
        self._entities = [row.entity for row in rows]
        self._columns = _columns(rows)
        self._position = 0

    def span_unix_ns(self) -> tuple[int, int] | None:
        return (self._times[0], self._times[-1]) if self._times else None

    def collect(self) -> Sequence[Record]:
        start = self._position
        end = bisect_right(self._times, self._clock.unix_ns(), lo=start)
        if start == end:
            return ()
        self._position = end
        table = SampleTable(
            scope=Scope.GPU,
            times_unix_ns=self._times[start:end],
            entities=self._entities[start:end],
            columns={name: values[start:end].tolist() for name, values in self._columns.items()},
        )
        return [table]

    def close(self) -> None:
        self._position = len(self._times)


def _read(path: Path) -> tuple[list[RecordedRow], int]:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"{path}: cannot read the GPU samples: {reason_of(error)}.") from error
    decoded = list(decode_lines(content.split(b"\n")))
    rows = sorted((row for row in decoded if row is not None), key=lambda row: row.time_unix_ns)
    skipped = len(decoded) - len(rows)
    if skipped:
        log.warning("lines of a recording were skipped", extra={"path": str(path), "lines": skipped})
    return rows, skipped


def _columns(rows: Sequence[RecordedRow]) -> dict[str, array[float]]:
    present = {name for row in rows for name in row.values}
    return {
        name: array("d", (row.values.get(name, math.nan) for row in rows))
        for name in NAMES
        if name in present
    }
