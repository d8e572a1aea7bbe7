"""Lightning's `metrics.csv`: a header with the names of metrics, and rows with a step."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from perfd_collectors.training_log.metric_files.metric_rows import MAX_KEYS, MetricRow
from perfd_collectors.training_log.printed_fields import number

_MOST_LINE_BYTES = 1 << 16
"""Longest row; rows of metrics are far shorter."""
_STEP = "step"


class CsvFileReader:
    """Rows of one file. It is written anew when a metric is logged for the first time."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._held = b""
        self._names: Sequence[str] | None = None

    def feed(self, data: bytes) -> Iterator[MetricRow]:
        *lines, self._held = (self._held + data).split(b"\n")
        if len(self._held) > _MOST_LINE_BYTES:
            self._held = b""
        for line in lines:
            row = self._line(line) if len(line) <= _MOST_LINE_BYTES else None
            if row is not None:
                yield row

    def flush(self) -> Iterator[MetricRow]:
        """Each row is complete at once."""
        return iter(())

    def _line(self, line: bytes) -> MetricRow | None:
        try:
            cells = next(csv.reader([line.decode("utf-8", "replace").rstrip("\r")], strict=True), [])
        except csv.Error:
            return None
        if self._names is None:
            self._names = cells[:MAX_KEYS]
            return None
        if _STEP not in self._names or len(cells) != len(self._names):
            return None
        values = {
            name: value
            for name, cell in zip(self._names, cells, strict=True)
            if (value := number(cell)) is not None
        }
        step = values.pop(_STEP, None)
        if step is None or step != int(step) or not 0 <= step < 1 << 53:
            return None
        return MetricRow(step=int(step), values=values)
