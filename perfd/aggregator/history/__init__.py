"""What survives a restart: an SQLite file, its tables, and recovery from it."""

from perfd.aggregator.history.history_recorder import HistoryRecorder
from perfd.aggregator.history.history_store import HistoryStore
from perfd.aggregator.history.history_tables import (
    Statement,
    agent_left_row,
    agent_row,
    alert_row,
    capture_row,
    engine_row,
    job_rows,
    node_memory_row,
    rows,
    size_of,
    summary_row,
)
from perfd.aggregator.history.startup_recovery import restore
from perfd.aggregator.history.stored_exporter_memory import StoredExporterMemory

__all__ = [
    "HistoryRecorder",
    "HistoryStore",
    "Statement",
    "StoredExporterMemory",
    "agent_left_row",
    "agent_row",
    "alert_row",
    "capture_row",
    "engine_row",
    "job_rows",
    "node_memory_row",
    "restore",
    "rows",
    "size_of",
    "summary_row",
]
