"""What exporters remember over a restart, in the history."""

from __future__ import annotations

from perfd.aggregator.history.history_rows import exporter_row
from perfd.aggregator.history.history_store import HistoryStore


class StoredExporterMemory:
    """The memory of one exporter. A full disk costs what it would have stored."""

    def __init__(self, store: HistoryStore, exporter: str) -> None:
        self._store = store
        self._exporter = exporter

    @property
    def closing(self) -> bool:
        return self._store.closing

    def load(self) -> bytes | None:
        return self._store.exporter_state(self._exporter)

    def save(self, state: bytes) -> None:
        self._store.submit([exporter_row(self._exporter, state)])
