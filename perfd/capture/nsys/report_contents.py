"""Whether an exported report has GPU work, of which processes, and the evidence of its steps."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perfd.errors import CaptureError
from perfd.trace.model.step_coverage import Recorded, whole_steps
from perfd.trace.model.trace_steps import NAMED_STEP, TraceStep, steps_among

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""CUDA graphs traced as a whole have no separate kernels."""
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_PID = "(globalPid >> 24) & 16777215"
"""In `globalPid` and `globalTid` the pid is in bits 24 to 47 (Nsight Systems' SQLite schema reference)."""
_MOST_KERNELS = 4_000_000
"""With more, steps are not counted: this runs on the training node."""
_GRAPH = "CUDA graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """An NVTX range."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Columns:
    """The kernels of one process."""

    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    ends_ns: array[int] = field(default_factory=lambda: array("q"))
    streams: array[int] = field(default_factory=lambda: array("q"))
    names: list[str] = field(default_factory=list)


class ReportCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent needs to know of a report."""

    kernels: dict[int, int]
    """The number of kernels of each pid."""
    whole_steps: dict[int, int | None]
    """By pid; empty if they were not asked for, or the report is too large to count them here."""
    recorded_from_s: float = 0.0
    """The latest start of a process' records, from the start of the collection."""


CHECK_FUNCTION = f"{__name__}:check"
"""For `check_trace`."""
CHECK_DECODER = msgspec.json.Decoder(ReportCheck)


def check(sqlite: Path, count_steps: bool, step_time_s: float | None) -> ReportCheck:
    """Check an exported report; raises `CaptureError` if it cannot be read."""
    kernels = dict(kernels_by_process(sqlite))
    try:
        recorded = recorded_by_process(sqlite) if count_steps else {}
    except CaptureError:
        recorded = {}  # Its kernels could be counted.
    return ReportCheck(
        kernels=kernels,
        whole_steps={pid: whole_steps(one, step_time_s) for pid, one in recorded.items()},
        recorded_from_s=max(((one.recorded_from_ns or 0) / 1e9 for one in recorded.values()), default=0.0),
    )


def kernels_by_process(sqlite: Path) -> Mapping[int, int]:
    """The number of kernels (or graph launches) of each pid; raises `CaptureError` if it cannot be read."""
    counts: dict[int, int] = {}
    with _opened(sqlite) as database:
        for table in _tables(database) & {_KERNELS, _GRAPHS}:
            query = f"SELECT {_PID}, count(*) FROM {table} GROUP BY 1"  # noqa: S608
            for pid, count in database.execute(query):
                counts[pid] = counts.get(pid, 0) + count
    return counts


def recorded_by_process(sqlite: Path) -> Mapping[int, Recorded]:
    """The evidence of each pid's steps; empty for a report that is too large to decode here.

    Raises `CaptureError` if it cannot be read.
    """
    if sum(kernels_by_process(sqlite).values()) > _MOST_KERNELS:
        return {}
    with _opened(sqlite) as database:
        there = _tables(database)
        steps, began_ns = _steps(database, there), _began_ns(database, there)
        duration_ns = _duration_ns(database, there)
        return {
            pid: Recorded(
                starts_ns=columns.starts_ns,
                ends_ns=columns.ends_ns,
                streams=columns.streams,
                names=columns.names,
                steps=steps.get(pid, ()),
                captured_ns=(0, duration_ns) if duration_ns else None,
                recorded_from_ns=min(columns.starts_ns[0], began_ns.get(pid, columns.starts_ns[0])),
            )
            for pid, columns in _kernels(database, there).items()
        }


@contextmanager
def _opened(sqlite: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"file:{sqlite}?mode=ro", uri=True)) as database:
            yield database
    except sqlite3.Error as error:
        raise CaptureError(f"The exported report cannot be read: {error}.") from error
    except (TypeError, OverflowError) as error:
        raise CaptureError(f"The exported report has values that are not numbers: {error}.") from error


def _tables(database: sqlite3.Connection) -> set[str]:
    """The existing tables: nsys creates them only for what it saw."""
    return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _kernels(database: sqlite3.Connection, there: set[str]) -> dict[int, _Columns]:
    parts = []
    of_all = f"SELECT {_PID} AS pid, start, end, deviceId * 4294967296 + streamId AS stream"
    if _KERNELS in there:
        parts.append(f"{of_all}, demangledName AS name FROM {_KERNELS}")
    if _GRAPHS in there:
        parts.append(f"{of_all}, NULL FROM {_GRAPHS}")
    if not parts:
        return {}
    strings: dict[int | None, str] = dict(database.execute("SELECT id, value FROM StringIds"))
    found: dict[int, _Columns] = {}
    for pid, start_ns, end_ns, stream, name in database.execute(
        f"{' UNION ALL '.join(parts)} ORDER BY start"
    ):
        columns = found.setdefault(pid, _Columns())
        columns.starts_ns.append(start_ns)
        columns.ends_ns.append(end_ns)
        columns.streams.append(stream)
        columns.names.append(_GRAPH if name is None else strings.get(name, ""))
    return found


def _steps(database: sqlite3.Connection, there: set[str]) -> dict[int, list[TraceStep]]:
    """NVTX ranges that count steps, by pid."""
    if "NVTX_EVENTS" not in there:
        return {}
    query = (
        "SELECT (e.globalTid >> 24) & 16777215, e.start, e.end, COALESCE(s.value, e.text) AS name "
        "FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
        "WHERE e.eventType IN (59, 60) AND e.end >= e.start AND (name LIKE '%step%' OR name LIKE '%iter%')"
    )
    ranges: dict[int, list[_Range]] = {}
    for pid, start_ns, end_ns, name in database.execute(query):
        ranges.setdefault(pid, []).append(_Range(name=str(name), start_ns=start_ns, end_ns=end_ns))
    return {pid: steps_among(mine, NAMED_STEP) for pid, mine in ranges.items()}


def _began_ns(database: sqlite3.Connection, there: set[str]) -> dict[int, int]:
    """When each pid's first call into the driver was recorded."""
    if _RUNTIME not in there:
        return {}
    query = f"SELECT (globalTid >> 24) & 16777215, min(start) FROM {_RUNTIME} GROUP BY 1"  # noqa: S608
    return dict(database.execute(query))


def _duration_ns(database: sqlite3.Connection, there: set[str]) -> int | None:
    """The duration of the collection, if the report has it."""
    if "ANALYSIS_DETAILS" not in there:
        return None
    row = database.execute("SELECT duration FROM ANALYSIS_DETAILS").fetchone()
    return int(row[0]) if row and row[0] else None
