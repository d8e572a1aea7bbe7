"""Opens the configured history."""

from __future__ import annotations

from pathlib import Path

from perfd.aggregator.history.database import HistoryDatabase
from perfd.aggregator.history.history_store import HistoryStore
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.partition import Partition
from perfd.config import HistoryConfig
from perfd.net.postgres_extra import require_postgres

_MAX_RETRY_S = 15.0
"""Long enough not to flood a recovering server with retries, short enough to use it again soon."""


def configured_history(config: HistoryConfig, partition: Partition | None = None) -> HistoryStore | None:
    """Open it; None if history is only in memory. Raises `PerfdError` if it cannot be used.

    Each partition has its own: schema `perfd_N`, or a file with `-N` appended to its name.
    """
    database = configured_database(config, partition)
    if database is None:
        return None
    return HistoryStore(
        database,
        max_retry_s=None if config.url is None else _MAX_RETRY_S,
        spare=None if partition is None else partition.spare,
    )


def configured_database(config: HistoryConfig, partition: Partition | None = None) -> HistoryDatabase | None:
    """The configured database, not yet open; None if there is none. Raises `ConfigError`."""
    if config.url is not None:
        require_postgres()
        # With the extra only.
        from perfd.aggregator.history.postgres import PostgresDatabase  # noqa: PLC0415

        return PostgresDatabase(config, partition=partition)
    if config.path is not None:
        path = Path(config.path)
        if partition is not None:
            path = path.with_stem(f"{path.stem}-{partition.number}")
        return SqliteDatabase(path, max_bytes=config.max_bytes)
    return None
