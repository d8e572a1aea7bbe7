"""Whether a file is of another program: `history.path` may name any file, and a damaged one is renamed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from perfd.aggregator.history.sqlite.salvaged_rows import DamagedFile
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA

_MAGIC = b"SQLite format 3\x00"
"""The first bytes of an SQLite file (SQLite's file format, section 1.3.1)."""
_ENOUGH_OF_MAGIC = 8
"""Bytes of it that are left in a damaged file of SQLite: half; text shares one or two by chance."""


def is_foreign(path: Path) -> bool:
    """Whether the file at `path` was never a history of perfd; it is read only. Raises `OSError`.

    A file that is empty, begins with zeros or has a row of a history may be one that was damaged. Devices and
    pipes are foreign, too; a folder is not: it cannot be opened in any case.
    """
    if not path.is_file():
        return path.exists() and not path.is_dir()
    with path.open("rb") as opened:
        begin = opened.read(len(_MAGIC))
    if sum(map(int.__eq__, begin, _MAGIC)) >= _ENOUGH_OF_MAGIC:
        return _has_foreign_tables(path)
    if not any(begin):
        return False
    with DamagedFile(path) as pages:
        return next(pages.salvage(), None) is None


def _has_foreign_tables(path: Path) -> bool:
    # Immutable: neither a lock nor a log is made beside it. What is in its log only is not seen.
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as file:
            version = file.execute("PRAGMA user_version").fetchone()[0]
            found = _tables(file)
    except (sqlite3.Error, UnicodeDecodeError):
        return False
    with contextlib.closing(sqlite3.connect(":memory:")) as wanted:
        wanted.executescript(SCHEMA)
        own = _tables(wanted)
    # perfd sets the version last; a file without it has tables of perfd only, if it is one.
    return bool(found and found.isdisjoint(own)) if version else not found <= own


def _tables(file: sqlite3.Connection) -> set[str]:
    rows = file.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {name for (name,) in rows}
