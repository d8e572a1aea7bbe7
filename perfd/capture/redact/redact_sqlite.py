"""A copy of an nsys SQLite export that may leave the node.

An export contains the job's whole environment (META_DATA_CAPTURE, TARGET_INFO_SYSTEM_ENV), its arguments, its
output (StringIds, through ANALYSIS_FILE and ProcessStreams), paths, and every process of the host
(PROCESSES, ThreadNames). Only content known to be harmless is copied, into a new file: tables, rows and
strings that a later version adds are not, nor are free pages of the original. The program's names of kernels
and NVTX ranges are kept, because a trace needs them. An .nsys-rep cannot be redacted and must not leave the
node.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

from perfd.errors import CaptureError

_WHOLE_TABLES = (
    "ANALYSIS_DETAILS",
    "CUPTI_ACTIVITY_KIND_*",
    "ENUM_*",
    "GPU_METRICS",
    "NVTX_EVENTS",
    "PROFILER_OVERHEAD",
    "TARGET_INFO_CUDA_*",
    "TARGET_INFO_GPU*",
    "TARGET_INFO_SESSION_START_TIME",
)
"""Times, sizes, kernels, ranges and the hardware."""

_ROWS: Mapping[str, str] = {
    "EXPORT_META_DATA": "name GLOB 'EXPORT_PRODUCT*' OR name GLOB 'EXPORT_SCHEMA*'",
    "META_DATA_EXPORT": "name GLOB 'EXPORT_PRODUCT*' OR name GLOB 'EXPORT_SCHEMA*'",
    "META_DATA_CAPTURE": "name IN ('CAPTURE_EVENT_TYPE', 'RUN_DURATION_MS')",
    "TARGET_INFO_SYSTEM_ENV": (
        "name IN ('CpuArchitecture', 'CpuCores', 'CpuDescription', 'CudaDriverVersion', 'HardwarePlatform', "
        "'KernelVersion', 'NvDriverVersion', 'OsDescription')"
    ),
    "ThreadNames": "globalTid & ~16777215 IN (SELECT id FROM temp.kept_processes)",
}
"""Tables of which only some rows are harmless."""

_EMPTIED_COLUMNS: Mapping[str, Sequence[str]] = {
    "NVTX_EVENTS": ("jsonText", "jsonTextId", "binaryData"),
    "PROCESSES": ("name",),
}
"""Payloads of ranges, and paths of programs."""

_STRING_COLUMNS = ("demangledName", "mangledName", "nameId", "shortName", "textId")
"""Columns of the copied tables that point into StringIds."""


def redact_export(source: Path, target: Path) -> None:
    """Write the harmless part of an export into `target`, which exists and is empty.

    Raises `CaptureError` if `source` is not an export.
    """
    try:
        with closing(sqlite3.connect(target, uri=True)) as copy:
            # This process cannot create other files, such as a journal; a partial copy is removed.
            copy.executescript("PRAGMA journal_mode = OFF; PRAGMA temp_store = MEMORY")
            copy.execute("ATTACH ? AS original", (f"{source.absolute().as_uri()}?mode=ro",))
            _copy(copy, source)
            copy.commit()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # What SQLite says about a damaged schema quotes it, in whatever bytes it has.
        raise CaptureError(f"{source} is not an SQLite export of nsys: {error}.") from error


def _copy(copy: sqlite3.Connection, source: Path) -> None:
    query = "SELECT name, sql FROM original.sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE %'"
    tables: dict[str, str] = dict(copy.execute(query).fetchall())
    if "StringIds" not in tables:
        raise CaptureError(f"{source} is not an SQLite export of nsys: it has no table StringIds.")
    copy.execute("CREATE TEMP TABLE kept_strings (id INTEGER PRIMARY KEY)")
    copy.execute("CREATE TEMP TABLE kept_processes (id INTEGER PRIMARY KEY)")
    for name in [name for name in tables if any(fnmatchcase(name, pattern) for pattern in _WHOLE_TABLES)]:
        _copy_table(copy, name, tables[name])
        _keep_what_it_refers_to(copy, name)
    for name in [name for name in tables if name in _ROWS]:
        _copy_table(copy, name, tables[name], where=_ROWS[name])
        _keep_what_it_refers_to(copy, name)
    _copy_table(copy, "StringIds", tables["StringIds"], where="id IN (SELECT id FROM temp.kept_strings)")
    if "PROCESSES" in tables:
        # Which pid belongs to which events.
        where = "globalPid IN (SELECT id FROM temp.kept_processes)"
        _copy_table(copy, "PROCESSES", tables["PROCESSES"], where=where)


def _copy_table(copy: sqlite3.Connection, name: str, sql: str, *, where: str = "1") -> None:
    copy.execute(sql)
    emptied = _EMPTIED_COLUMNS.get(name, ())
    # A value that was copied and then removed would still be in the bytes of its page.
    columns = ", ".join("NULL" if one in emptied else _quoted(one) for one in _columns(copy, name))
    # Names come from the file's own schema and are quoted; conditions are ours.
    query = f"SELECT {columns} FROM original.{_quoted(name)} WHERE {where}"  # noqa: S608
    copy.execute(f"INSERT INTO main.{_quoted(name)} {query}")


def _keep_what_it_refers_to(copy: sqlite3.Connection, name: str) -> None:
    """Record the strings and processes that a copied table needs."""
    columns = _columns(copy, name)
    table = _quoted(name)
    for column in [column for column in columns if column in _STRING_COLUMNS]:
        query = f"SELECT DISTINCT {column} FROM main.{table} WHERE {column} IS NOT NULL"  # noqa: S608
        copy.execute(f"INSERT OR IGNORE INTO temp.kept_strings {query}")
    for column in [column for column in columns if column in ("globalPid", "globalTid")]:
        # The low 24 bits are the thread (Nsight Systems' SQLite schema reference).
        query = f"SELECT DISTINCT {column} & ~16777215 FROM main.{table} WHERE {column} IS NOT NULL"  # noqa: S608
        copy.execute(f"INSERT OR IGNORE INTO temp.kept_processes {query}")


def _columns(copy: sqlite3.Connection, name: str) -> Sequence[str]:
    return [row[1] for row in copy.execute(f"PRAGMA main.table_info({_quoted(name)})")]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
