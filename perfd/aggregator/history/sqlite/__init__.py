"""History in an SQLite file: nothing to install, one machine."""

from perfd.aggregator.history.sqlite.sqlite_database import SqliteDatabase

__all__ = ["SqliteDatabase"]
