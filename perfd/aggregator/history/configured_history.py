"""The history that the configuration asks for."""

from __future__ import annotations

from pathlib import Path

from perfd.aggregator.history.history_store import HistoryStore
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.config import HistoryConfig


def configured_history(config: HistoryConfig) -> HistoryStore | None:
    """Open it; None if history is only in memory. Raises `PerfdError` if it cannot be used."""
    if config.path is None:
        return None
    return HistoryStore(SqliteDatabase(Path(config.path), max_bytes=config.max_bytes))
