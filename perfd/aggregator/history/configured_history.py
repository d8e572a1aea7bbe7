"""Opens the configured history."""

from __future__ import annotations

from pathlib import Path

from perfd.aggregator.history.history_store import HistoryStore
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.config import HistoryConfig
from perfd.net.postgres_extra import require_postgres

_MAX_RETRY_S = 15.0
"""Long enough not to flood a recovering server with retries, short enough to use it again soon."""


def configured_history(config: HistoryConfig) -> HistoryStore | None:
    """Open it; None if history is only in memory. Raises `PerfdError` if it cannot be used."""
    if config.url is not None:
        require_postgres()
        # With the extra only.
        from perfd.aggregator.history.postgres import PostgresDatabase  # noqa: PLC0415

        return HistoryStore(PostgresDatabase(config), max_retry_s=_MAX_RETRY_S)
    if config.path is not None:
        return HistoryStore(SqliteDatabase(Path(config.path), max_bytes=config.max_bytes))
    return None
