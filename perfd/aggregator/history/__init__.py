"""What survives a restart: rows in a database, and recovery from them."""

from perfd.aggregator.history.configured_history import configured_database, configured_history
from perfd.aggregator.history.ended_jobs import EndedJob
from perfd.aggregator.history.history_recorder import HistoryRecorder, StoredExporterMemory
from perfd.aggregator.history.history_rows import (
    Statement,
    agent_row,
    capture_row,
    job_rows,
    node_memory_row,
    rows,
    size_of,
)
from perfd.aggregator.history.history_store import HistoryStore
from perfd.aggregator.history.startup_recovery import restore

__all__ = [
    "EndedJob",
    "HistoryRecorder",
    "HistoryStore",
    "Statement",
    "StoredExporterMemory",
    "agent_row",
    "capture_row",
    "configured_database",
    "configured_history",
    "job_rows",
    "node_memory_row",
    "restore",
    "rows",
    "size_of",
]
