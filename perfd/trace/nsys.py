"""Reads the SQLite export of Nsight Systems, schemas 3.11 to 3.20.

Tables exist only when they have rows, and the order of rows means nothing. Times are nanoseconds from
the start of the collection. (Source: "SQLite schema reference" in Nsight Systems' user guide.)
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfd.errors import TraceError
from perfd.trace.classify import call_kind, kernel_kind
from perfd.trace.intervals import Ns
from perfd.trace.model import EMPTY, GpuOperations, HostCalls, Kind, RankTrace, Step

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_OVERHEAD = "PROFILER_OVERHEAD"
_UNNAMED = {
    # A graph captured as a whole is one operation: it keeps the GPU busy like its kernels would.
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("CUDA graph", Kind.COMPUTE),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("memory copy", Kind.MEMORY),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("memory set", Kind.MEMORY),
}
_STEP = re.compile(r"(?:ProfilerStep#|(?:iteration|iter|step)[ _#:=]*)(\d+)", re.IGNORECASE)
_PUSH_POP, _START_END = 59, 60
# A global thread id is (hardware, virtual machine, process, thread); without the thread it names the process.
_THREAD_BITS = 24


def read(path: Path) -> list[RankTrace]:
    """One trace per process that used a GPU, in order of device.

    Raises `TraceError`, naming the file, when it is no export of Nsight Systems or holds no GPU operation.
    """
    if not path.is_file():
        raise TraceError(f"{path}: there is no such file.")
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return _Export(path, connection).traces()
    except sqlite3.DatabaseError as error:
        raise TraceError(
            f"{path}: this is no export of Nsight Systems, or it is damaged: {error}."
        ) from error
    finally:
        connection.close()


class _Export:
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {name for (name,) in rows}
        if "StringIds" not in self._tables:
            raise TraceError(f"{path}: this is no export of Nsight Systems: it has no table StringIds.")

    def traces(self) -> list[RankTrace]:
        strings = dict(self._connection.execute("SELECT id, value FROM StringIds"))
        names, operations = self._operations(strings)
        calls = self._calls(strings)
        steps, gpus = self._steps(), self._gpu_names()
        captured, epoch_ns = self._captured_ns(), self._epoch_ns()
        traces = []
        for process in np.unique(operations[:, _PROCESS]):
            mine = operations[operations[:, _PROCESS] == process]
            device = int(np.bincount(mine[:, _DEVICE]).argmax())
            traces.append(
                RankTrace(
                    file=str(self._path),
                    rank=None,
                    gpu=gpus.get(device),
                    device=device,
                    names=names,
                    operations=_as_operations(mine),
                    calls=_as_calls(calls[calls[:, 5] == process]),
                    steps=steps.get(int(process), []),
                    overhead=self._profiler_overhead(int(process)),
                    captured_ns=captured,
                    epoch_ns=epoch_ns,
                )
            )
        return sorted(traces, key=lambda trace: trace.device or 0)

    def _rows(self, query: str) -> NDArray[np.int64]:
        rows = self._connection.execute(query).fetchall()
        return np.array(rows, dtype=np.int64).reshape(len(rows), -1)

    def _operations(self, strings: Mapping[int, str]) -> tuple[list[str], NDArray[np.int64]]:
        """Names, and rows of (start, end, device, stream, correlation, process, name, kind)."""
        columns = "start, end, deviceId, streamId, COALESCE(correlationId, -1), globalPid"
        names: list[str] = []
        parts: list[NDArray[np.int64]] = []
        if _KERNELS in self._tables:
            kernels = self._rows(f"SELECT {columns}, shortName FROM {_KERNELS}")  # noqa: S608
            if len(kernels):
                used, index = np.unique(kernels[:, -1], return_inverse=True)
                names = [strings.get(int(key), "") for key in used]
                kinds = np.array([kernel_kind(name) for name in names], dtype=np.int64)
                parts.append(np.column_stack((kernels[:, :-1], index, kinds[index])))
        for table, (name, kind) in _UNNAMED.items():
            if table in self._tables:
                rows = self._rows(f"SELECT {columns} FROM {table}")  # noqa: S608
                if len(rows):
                    extra = np.broadcast_to([len(names), int(kind)], (len(rows), 2))
                    names.append(name)
                    parts.append(np.column_stack((rows, extra)))
        if not parts:
            raise TraceError(
                f"{self._path}: the capture has no GPU operation; was it taken with --trace=cuda?"
            )
        operations = np.concatenate(parts)
        return names, operations[operations[:, 1] >= operations[:, 0]]

    def _calls(self, strings: Mapping[int, str]) -> NDArray[np.int64]:
        """Rows of (start, end, correlation, thread, kind, process)."""
        if _RUNTIME not in self._tables:
            return np.empty((0, 6), dtype=np.int64)
        rows = self._rows(
            f"SELECT start, end, COALESCE(correlationId, -1), globalTid, nameId FROM {_RUNTIME}"  # noqa: S608
        )
        if not len(rows):
            return np.empty((0, 6), dtype=np.int64)
        used, index = np.unique(rows[:, 4], return_inverse=True)
        kinds = np.array([call_kind(strings.get(int(key), "")) for key in used], dtype=np.int64)
        process = rows[:, 3] >> _THREAD_BITS << _THREAD_BITS
        return np.column_stack((rows[:, :4], kinds[index], process))

    def _steps(self) -> dict[int, list[Step]]:
        """NVTX ranges that count iterations, by process."""
        steps: dict[int, dict[int, Step]] = {}
        if "NVTX_EVENTS" not in self._tables:
            return {}
        query = (
            "SELECT e.start, e.end, e.globalTid, COALESCE(s.value, e.text) FROM NVTX_EVENTS e "  # noqa: S608
            f"LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType IN ({_PUSH_POP}, {_START_END}) "
            "AND e.end IS NOT NULL"
        )
        for start, end, thread, text in self._connection.execute(query):
            if text and (found := _STEP.fullmatch(text.strip())):
                process = thread >> _THREAD_BITS << _THREAD_BITS
                number = int(found[1])
                steps.setdefault(process, {})[number] = Step(number=number, start_ns=start, end_ns=end)
        return {process: [found[n] for n in sorted(found)] for process, found in steps.items()}

    def _profiler_overhead(self, process: int) -> tuple[Ns, Ns]:
        if _OVERHEAD not in self._tables:
            return EMPTY, EMPTY
        of_process = f"globalTid >> {_THREAD_BITS} << {_THREAD_BITS} = {process}"
        rows = self._rows(f"SELECT start, end FROM {_OVERHEAD} WHERE {of_process}")  # noqa: S608
        return (rows[:, 0], rows[:, 1]) if len(rows) else (EMPTY, EMPTY)

    def _gpu_names(self) -> dict[int, str]:
        if "TARGET_INFO_GPU" not in self._tables:
            return {}
        return dict(self._connection.execute("SELECT id, name FROM TARGET_INFO_GPU"))

    def _captured_ns(self) -> tuple[int, int] | None:
        if "ANALYSIS_DETAILS" not in self._tables:
            return None
        row = self._connection.execute("SELECT startTime, stopTime FROM ANALYSIS_DETAILS").fetchone()
        return (int(row[0]), int(row[1])) if row and None not in row else None

    def _epoch_ns(self) -> int | None:
        if "TARGET_INFO_SESSION_START_TIME" not in self._tables:
            return None
        row = self._connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        return int(row[0]) if row and row[0] is not None else None


_DEVICE, _PROCESS = 2, 5


def _as_operations(rows: NDArray[np.int64]) -> GpuOperations:
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return GpuOperations(
        start_ns=np.ascontiguousarray(rows[:, 0]),
        end_ns=np.ascontiguousarray(rows[:, 1]),
        stream=rows[:, 3],
        correlation=np.ascontiguousarray(rows[:, 4]),
        name=rows[:, 6].astype(np.int32),
        kind=rows[:, 7].astype(np.uint8),
    )


def _as_calls(rows: NDArray[np.int64]) -> HostCalls:
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return HostCalls(
        start_ns=np.ascontiguousarray(rows[:, 0]),
        end_ns=np.ascontiguousarray(rows[:, 1]),
        correlation=np.ascontiguousarray(rows[:, 2]),
        thread=rows[:, 3],
        kind=rows[:, 4].astype(np.uint8),
    )
