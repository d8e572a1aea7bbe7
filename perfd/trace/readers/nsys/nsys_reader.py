"""Reads the SQLite export of Nsight Systems, schemas 3.11 to 3.20.

Tables exist only when they have rows, and the order of rows means nothing. Times are nanoseconds from
the start of the collection. (Source: "SQLite schema reference" in Nsight Systems' user guide.)
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfd.errors import TraceError
from perfd.trace.model.intervals import Ns
from perfd.trace.model.kernel_classes import kernel_class
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import RankTrace, no_calls
from perfd.trace.model.trace_detail import NamedCalls, TraceDetail
from perfd.trace.model.trace_steps import NAMED_STEP, steps_among
from perfd.trace.readers.nsys.nccl_calls import collectives_of
from perfd.trace.readers.nsys.nsys_tables import Activity, Tables

_RUNTIME, _OS_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API"
_LIBRARIES = ("CUDNN_EVENTS", "CUBLAS_EVENTS")
_PROCESS_BITS, _PROCESS_MASK = 24, 0xFFFFFF
"""Where a global process id has the process."""
_OLDEST, _NEWEST = (3, 11), (3, 20)
"""The schemas that were read. With another first number, columns may mean something else."""
_MISSING_COLUMN = re.compile(r"no such column: (\S{1,80})$")
_STRAY_RATIO = 0.05
"""A device with less than this share of a process' operations is not its device."""
_NO_PAYLOADS = (
    "The export lacks communicators and sizes of NCCL's calls: export with"
    " `nsys export --type sqlite --include-blobs=true`."
)


class NsysDetail:
    """Of one export; asked for each process."""

    def __init__(self, tables: Tables) -> None:
        sizes = tables.operation_sizes()
        self._size_bytes = sizes[:, 0]
        used, shapes = np.unique(sizes[:, 1:], axis=0, return_inverse=True)
        known = used[:, 0] >= 0 if len(used) else np.zeros(0, dtype=np.bool_)
        self._shape_names = [
            "x".join(map(str, row[:3])) + " " + "x".join(map(str, row[3:])) for row in used.tolist()
        ]
        self._shapes = np.where(known[shapes.ravel()], shapes.ravel(), -1)
        self._api = tables.named_calls(_RUNTIME)
        calls, names = tables.named_calls(_OS_RUNTIME)
        # The beginning of a chain of calls is a row too, without a name and a duration.
        self._os_calls = calls[calls[:, 1] > calls[:, 0]], names
        self._libraries = [tables.named_calls(table) for table in _LIBRARIES]
        self._priorities = tables.target.stream_priorities()
        self._multiprocessors = tables.target.multiprocessors()

    def of(self, process: int, device: int, rows: Ns) -> TraceDetail:
        """Of a process' operations on a device in these rows of the tables."""
        pid = process >> _PROCESS_BITS & _PROCESS_MASK
        return TraceDetail(
            size_bytes=self._size_bytes[rows],
            launch_shape=self._shapes[rows],
            launch_shapes=self._shape_names,
            api=_calls_of(*self._api, process),
            os_calls=_calls_of(*self._os_calls, process),
            library_calls=_joined([_calls_of(*one, process) for one in self._libraries]),
            stream_priorities={
                stream: priority for (of, stream), priority in self._priorities.items() if of == pid
            },
            multiprocessors=self._multiprocessors.get(device),
        )


def _calls_of(rows: Ns, names: Sequence[str], process: int) -> NamedCalls:
    mine = rows[rows[:, 2] == process]
    return NamedCalls(start_ns=mine[:, 0], end_ns=mine[:, 1], name=mine[:, 3], names=names)


def _joined(parts: Sequence[NamedCalls]) -> NamedCalls:
    names = [name for part in parts for name in part.names]
    before = np.cumsum([0, *(len(part.names) for part in parts)])
    return NamedCalls(
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        name=np.concatenate([part.name + first for part, first in zip(parts, before, strict=False)]),
        names=names,
    )


def read(path: Path, shown_as: str | None = None, *, detailed: bool = False) -> list[RankTrace]:
    """One trace for each process and GPU that it used, in order of device; `detailed` ones with it.

    Raises `TraceError`, naming the file (or `shown_as`), if it is not an export of Nsight Systems, truncated,
    damaged, or has no GPU operation.
    """
    name = shown_as or str(path)
    if not path.is_file():
        raise TraceError(f"{name}: there is no such file.")
    _check_size(path, name)
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            return _traces(name, Tables(name, connection), detailed)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        missing = _MISSING_COLUMN.match(str(error))
        why = f"; it has no column {missing[1]}" if missing else ""
        raise TraceError(
            f"{name}: not an export of Nsight Systems, or damaged{why}. Copy it again, or export the report"
            " again: `nsys export --type sqlite REPORT`."
        ) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{name}: the export is damaged: a table holds something else than numbers. Copy it again, or"
            " export the report again: `nsys export --type sqlite REPORT`."
        ) from error


def _check_size(path: Path, name: str) -> None:
    """SQLite reads a cut file until it needs a page that is missing; the header knows better."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) == 100 and header.startswith(b"SQLite format 3\0") and header[24:28] == header[92:96]:
        page_bytes = int.from_bytes(header[16:18], "big")
        claimed = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
        if path.stat().st_size < claimed:
            raise TraceError(
                f"{name}: the file is cut: it has {path.stat().st_size} of {claimed} bytes that it claims;"
                " copy or export it again."
            )


def _traces(name: str, tables: Tables, detailed: bool) -> list[RankTrace]:
    schema_notes = _of_schema(name, tables.target.schema())
    activity = tables.activity()
    if not len(activity.row):
        why = "none has a valid time." if activity.invalid else "was it taken with --trace=cuda?"
        raise TraceError(f"{name}: the capture has no GPU operation; {why}")
    classes = [kernel_class(one) for one in activity.names]
    calls, phases, gpus = tables.calls(), tables.phases(), tables.gpu_names()
    captured, epoch_ns, notes = (
        tables.target.captured_ns(),
        tables.target.epoch_ns(),
        (*schema_notes, *tables.target.notes()),
    )
    if activity.invalid:
        notes = (*notes, f"{activity.invalid} GPU operations have no valid time, and are left out.")
    nccl, described = tables.nccl_calls()
    if nccl and not described and (activity.kind == OperationKind.COMMUNICATION).any():
        notes = (*notes, _NO_PAYLOADS)
    details = NsysDetail(tables) if detailed else None
    traces = []
    for process, device, rows in _by_gpu(activity):
        operations = activity.of_rows(rows)
        mine_calls = calls.get(process) or no_calls()
        named = phases.get(process, [])
        traces.append(
            RankTrace(
                file=name,
                rank=None,
                gpu=gpus.get((process, device), gpus.get((None, device))),
                device=device,
                names=activity.names,
                classes=classes,
                operations=operations,
                calls=mine_calls,
                call_names=tables.call_names,
                steps=steps_among(named, NAMED_STEP),
                collectives=collectives_of(operations, mine_calls, nccl.get(process, ()))
                if described
                else (),
                phases=[phase for phase in named if not NAMED_STEP.fullmatch(phase.name)],
                overhead=tables.overhead(process),
                captured_ns=captured,
                recorded_from_ns=_first_ns(operations.start_ns, mine_calls.start_ns),
                epoch_ns=epoch_ns,
                notes=notes,
                detail=details.of(process, device, activity.row[rows]) if details else None,
            )
        )
    return traces


def _of_schema(name: str, schema: tuple[int, int] | None) -> tuple[str, ...]:
    """What to know of an export by its schema; raises `TraceError` for one that may mean something else."""
    if schema is None or _OLDEST <= schema <= _NEWEST:
        return ()
    found = f"schema {schema[0]}.{schema[1]} of Nsight Systems"
    known = f"{_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}"
    if schema[0] != _NEWEST[0]:
        raise TraceError(
            f"{name}: the export has {found}, and perfd reads {known}; export it with such an nsys."
        )
    return (f"The export has {found}, with which perfd was not tried; it was with {known}.",)


def _by_gpu(activity: Activity) -> list[tuple[int, int, slice]]:
    """Processes, devices and which rows are theirs, in order of device and process."""
    of_process: Counter[int] = Counter()
    for process, _device, rows in activity.gpus:
        of_process[process] += rows.stop - rows.start
    kept = [one for one in activity.gpus if one[2].stop - one[2].start >= _STRAY_RATIO * of_process[one[0]]]
    return sorted(kept, key=lambda one: (one[1], one[0]))


def _first_ns(*starts_ns: Ns) -> int:
    """The earliest of columns that are in order; one at least has a row."""
    return min(int(starts[0]) for starts in starts_ns if len(starts))
