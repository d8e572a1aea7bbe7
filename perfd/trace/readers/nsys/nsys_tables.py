"""The tables of a SQLite export of Nsight Systems, as columns of numbers.

Rows go from the cursor straight into an array; where only some rows matter, the query leaves the others
out, since turning a row into Python's numbers costs more than reading it.
"""

from __future__ import annotations

import math
import re
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np

from perfd.errors import TraceError
from perfd.trace.model.intervals import Codes, Flags, Indices, Ns
from perfd.trace.model.kernel_classes import call_kind, kernel_kind
from perfd.trace.model.operation_kinds import HostCallKind, OperationKind
from perfd.trace.model.rank_trace import GpuOperations, HostCalls, Phase
from perfd.trace.readers.nsys.nccl_calls import NcclCall, call_name, decoded, schema_fields
from perfd.trace.readers.nsys.read_window import limited
from perfd.trace.readers.nsys.target_info import TargetInfo

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_OVERHEAD = "PROFILER_OVERHEAD"
_SIZES: Mapping[str, Sequence[str]] = {
    _KERNELS: ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    _COPIES: ("bytes",),
    _FILLS: ("bytes",),
    _GRAPHS: (),
}
"""What says how large an operation is, in the order in which tables are read."""
_OPERATION = "start, end, deviceId, streamId, COALESCE(correlationId, -1), globalPid"
_ACTIVITY = {
    **dict.fromkeys(("start_ns", "end_ns", "device", "stream", "correlation", "process"), np.int64),
    "name": np.int32,
    "kind": np.uint8,
}
_ROWS_AT_ONCE = 1 << 16
"""Rows that are Python's objects at one time."""
_PAYLOADS = {
    **{
        name: f"e.{name}" for name in ("int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")
    },
    # SQLite's integers have a sign.
    "uint64Value": "e.uint64Value + CASE WHEN e.uint64Value < 0 THEN 18446744073709551616.0 ELSE 0 END",
}
_PUSH_POP, _START_END, _DOMAIN_CREATED = 59, 60, 75
"""Event types of NVTX_EVENTS (nsys' ENUM_NSYS_EVENT_TYPE)."""
# A global thread id is (hardware, virtual machine, process, thread); without the thread it names the process.
_THREAD_BITS = 24
_MAX_TIME_NS = 10**17
"""Three years: what claims more is damaged, and sums of it would overflow."""
_API_VERSION = re.compile(r"_v\d{1,8}$")
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the GPUs did, as columns of n operations in order of process, device and start."""

    names: Sequence[str]
    gpus: Sequence[tuple[int, int, slice]]
    """Each process and device with its rows, in their order."""
    start_ns: Ns
    end_ns: Ns
    stream: Ns
    correlation: Ns
    name: Indices
    """Index into `names`."""
    kind: Codes
    row: Ns
    """Place among all rows of the tables, in the order in which they are read."""
    invalid: int
    """How many rows have no valid time, and are left out."""

    def of_rows(self, rows: slice) -> GpuOperations:
        """The operations of some rows, which are those of one GPU; the columns are not copied."""
        return GpuOperations(
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
            kind=self.kind[rows],
            name=self.name[rows],
            stream=self.stream[rows],
            correlation=self.correlation[rows],
        )


class Tables:
    """Reads one export; every method gives what the table says, and nothing where there is none.

    Of a large one, they know the records of `window` only.
    """

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {table for (table,) in rows}
        if "StringIds" not in self._tables:
            raise TraceError(f"{name}: not an export of Nsight Systems: it has no table StringIds.")
        self.window = limited(connection, self._tables)
        self.target = TargetInfo(connection, self._tables, self.window)
        self.call_names: list[str] = []
        """Of the calls, once they were read."""
        self._strings: dict[int, str] = dict(connection.execute("SELECT id, value FROM StringIds"))

    def activity(self) -> Activity:
        """All kernels, copies, fills and whole graphs."""
        names: list[str] = []
        parts = [part for part in self._activities(names) if len(part["name"])]
        # One column after the other, each freed where it came from: an export may have many millions of rows.
        columns = {
            key: np.concatenate([part.pop(key) for part in parts]) if parts else np.empty(0, dtype=dtype)
            for key, dtype in _ACTIVITY.items()
        }
        valid = _are_times(columns["start_ns"], columns["end_ns"])
        row = np.flatnonzero(valid)
        row = row[np.lexsort([columns[key][row] for key in ("start_ns", "device", "process")])].astype(
            np.int32
        )
        device, process = (columns.pop(key)[row] for key in ("device", "process"))
        gpus = [(int(process[one.start]), int(device[one.start]), one) for one in runs_of(process, device)]
        del device, process
        for key in columns:
            columns[key] = columns[key][row]
        return Activity(names=names, gpus=gpus, row=row, invalid=int(len(valid) - len(row)), **columns)

    def _activities(self, names: list[str]) -> Iterator[dict[str, Any]]:
        """The columns of each table; `names` gets those of its operations."""
        if _KERNELS in self._tables:
            name = (
                "COALESCE(demangledName, shortName)" if self._has(_KERNELS, "demangledName") else "shortName"
            )
            rows = self._columns(f"SELECT {_OPERATION}, {name} FROM {_KERNELS}", 7)  # noqa: S608
            used, index = np.unique(rows.pop(), return_inverse=True)
            names.extend(self._strings.get(int(key), "") for key in used)
            kinds = np.array([kernel_kind(name) for name in names], dtype=np.uint8)
            yield _named(rows, index, kinds[index])
        if _COPIES in self._tables:
            kinds_of = "COALESCE(copyKind, 0) * 65536 + COALESCE(srcKind, 15) * 256 + COALESCE(dstKind, 15)"
            rows = self._columns(f"SELECT {_OPERATION}, {kinds_of} FROM {_COPIES}", 7)  # noqa: S608
            used, index = np.unique(rows.pop(), return_inverse=True)
            yield _named(rows, index + len(names), np.full(len(index), OperationKind.MEMORY))
            names.extend(_copy_name(int(key)) for key in used)
        # A graph captured as a whole is one operation: it keeps the GPU busy like its kernels would.
        for table, label, kind in (
            (_FILLS, "Memset", OperationKind.MEMORY),
            (_GRAPHS, "CUDA graph", OperationKind.COMPUTE),
        ):
            if table in self._tables:
                number = "COALESCE(graphExecId, -1)" if self._has(table, "graphExecId") else "-1"
                rows = self._columns(f"SELECT {_OPERATION}, {number} FROM {table}", 7)  # noqa: S608
                used, index = np.unique(rows.pop(), return_inverse=True)
                yield _named(rows, index + len(names), np.full(len(index), kind))
                names.extend(label if key < 0 else f"{label} {key}" for key in used.tolist())

    def calls(self) -> dict[int, HostCalls]:
        """By process, the host's calls that put work on a GPU or wait for one, and did not fail."""
        if _RUNTIME not in self._tables:
            return {}
        # Those of the driver and the runtime; to ask the table for its own takes another pass over it.
        functions = {key: name for key, name in self._strings.items() if str(name).startswith("cu")}
        kinds = {key: call_kind(name) for key, name in functions.items()}
        known = sorted(int(key) for key, kind in kinds.items() if kind is not HostCallKind.OTHER)
        wanted = ", ".join(map(str, known)) or "NULL"
        self.call_names = [functions[key] for key in known]
        place, kind = np.array(known, dtype=np.int64), np.array([kinds[key] for key in known], dtype=np.uint8)
        parts: dict[int, list[array[int]]] = {}
        for thread, start, end, correlation, name in self._chunks(
            f"SELECT globalTid, start, end, COALESCE(correlationId, -1), nameId FROM {_RUNTIME} "  # noqa: S608
            f"WHERE nameId IN ({wanted}) AND COALESCE(returnValue, 0) = 0",
            5,
        ):
            valid, process = _are_times(start, end), thread >> _THREAD_BITS << _THREAD_BITS
            for one in np.unique(process[valid]).tolist():
                mine = valid & (process == one)
                columns = parts.setdefault(one, [array("q") for _ in range(5)])
                for column, part in zip((thread, start, end, correlation, name), columns, strict=True):
                    part.frombytes(column[mine].tobytes())
        return {process: _calls_in_order(parts.pop(process), place, kind) for process in sorted(parts)}

    def operation_sizes(self) -> Ns:
        """Bytes, blocks (3) and threads (3) of each row of `activity`, invalid ones too; -1 where unknown."""
        parts = []
        for table, columns in _SIZES.items():
            if table in self._tables:
                known = [f"COALESCE({one}, -1)" if self._has(table, one) else "-1" for one in columns]
                names = ", ".join(known) or "-1"
                rows = self._rows(f"SELECT {names} FROM {table}", max(1, len(columns)))  # noqa: S608
                sizes = np.full((len(rows), 7), -1, dtype=np.int64)
                if table == _KERNELS:
                    sizes[:, 1:] = rows
                else:
                    sizes[:, 0] = rows[:, 0]
                parts.append(sizes)
        return np.concatenate(parts) if parts else np.empty((0, 7), dtype=np.int64)

    def named_calls(self, table: str) -> tuple[Ns, Sequence[str]]:
        """Start, end, process and index of the name of all calls in a table, failed ones too; the names."""
        if table not in self._tables:
            return np.empty((0, 4), dtype=np.int64), ()
        rows = self._rows(f"SELECT start, end, globalTid, nameId FROM {table}", 4)  # noqa: S608
        rows = rows[_are_times(rows[:, 0], rows[:, 1])]
        used, index = np.unique(rows[:, 3], return_inverse=True)
        process = rows[:, 2] >> _THREAD_BITS << _THREAD_BITS
        # The runtime's functions have the version in their name: cudaLaunchKernel_v7000.
        plain = [_API_VERSION.sub("", str(self._strings.get(int(key), ""))) for key in used]
        names = {name: at for at, name in enumerate(dict.fromkeys(plain))}
        place = np.array([names[name] for name in plain], dtype=np.int64)
        return np.column_stack((rows[:, :2], process, place[index])), list(names)

    def phases(self) -> dict[int, list[Phase]]:
        """NVTX ranges by process, in order of start."""
        if "NVTX_EVENTS" not in self._tables:
            return {}
        domains = self._domains()
        query = (
            f"SELECT e.start, e.end, e.globalTid, COALESCE(s.value, e.text), e.domainId, {self._payload()} "  # noqa: S608
            "FROM NVTX_EVENTS e "
            f"LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType IN ({_PUSH_POP}, {_START_END}) "
            "AND e.end >= e.start ORDER BY e.start, e.end DESC"
        )
        phases: dict[int, list[Phase]] = {}
        for start, end, thread, text, domain_id, payload in self._connection.execute(query):
            if isinstance(text, str) and text and abs(start) < _MAX_TIME_NS and end < _MAX_TIME_NS:
                process = int(thread) >> _THREAD_BITS << _THREAD_BITS
                phases.setdefault(process, []).append(
                    Phase(
                        name=text,
                        start_ns=int(start),
                        end_ns=int(end),
                        thread=int(thread),
                        domain=domains.get((process, domain_id), ""),
                        payload=_number(payload),
                    )
                )
        return phases

    def _payload(self) -> str:
        """What gives the number of a range: it is of one of six types, whose column is not NULL."""
        known = [said for column, said in _PAYLOADS.items() if self._has("NVTX_EVENTS", column)]
        return f"COALESCE({', '.join(known)}, NULL)" if known else "NULL"

    def _domains(self) -> dict[tuple[int, Any], str]:
        """Names of NVTX domains by process and number; the default one has none."""
        rows = self._connection.execute(
            "SELECT e.globalTid, e.domainId, COALESCE(s.value, e.text) FROM NVTX_EVENTS e "  # noqa: S608
            f"LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType = {_DOMAIN_CREATED}"
        )
        return {
            (int(thread) >> _THREAD_BITS << _THREAD_BITS, number): str(name)
            for thread, number, name in rows
            if isinstance(thread, int) and name
        }

    def nccl_calls(self) -> tuple[dict[int, list[NcclCall]], bool]:
        """NCCL's ranges by process, in order of start; whether any has a payload."""
        if "NVTX_EVENTS" not in self._tables:
            return {}, False
        payloads = self._has("NVTX_EVENTS", "binaryData") and "NVTX_PAYLOAD_SCHEMA_ENTRIES" in self._tables
        fields = schema_fields(
            self._connection.execute(
                "SELECT domainId, schemaId, name, offset FROM NVTX_PAYLOAD_SCHEMA_ENTRIES"
            )
            if payloads
            else ()
        )
        names = {key: name for key, text in self._strings.items() if (name := call_name(str(text)))}
        ids = ", ".join(str(int(key)) for key in names) or "NULL"
        columns = "domainId, binaryData" if payloads else "NULL, NULL"
        found: dict[int, list[NcclCall]] = {}
        for start, end, thread, key, text, domain, blob in self._connection.execute(
            f"SELECT start, end, globalTid, textId, text, {columns} FROM NVTX_EVENTS "  # noqa: S608
            f"WHERE eventType = {_PUSH_POP} AND end >= start AND (textId IN ({ids}) OR text LIKE '%nccl%') "
            "ORDER BY start"
        ):
            name = names.get(key) or call_name(str(text))
            if name and abs(start) < _MAX_TIME_NS and end < _MAX_TIME_NS:
                found.setdefault(int(thread) >> _THREAD_BITS << _THREAD_BITS, []).append(
                    NcclCall(
                        name=name,
                        start_ns=int(start),
                        end_ns=int(end),
                        thread=int(thread),
                        payload=decoded(blob, domain, fields) if isinstance(domain, int) else None,
                    )
                )
        return found, any(one.payload for calls in found.values() for one in calls)

    def overhead(self, process: int) -> tuple[Ns, Ns]:
        """When the profiler held a process up."""
        if _OVERHEAD not in self._tables:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        of_process = f"globalTid >> {_THREAD_BITS} << {_THREAD_BITS} = {process}"
        rows = self._rows(f"SELECT start, end FROM {_OVERHEAD} WHERE {of_process}", 2)  # noqa: S608
        rows = rows[_are_times(rows[:, 0], rows[:, 1])]
        return rows[:, 0], rows[:, 1]

    def gpu_names(self) -> Mapping[tuple[int | None, int], str]:
        """Names by process and the process' number of the device; by the node's number under None."""
        if "TARGET_INFO_GPU" not in self._tables:
            return {}
        by_node: dict[int, str] = dict(self._connection.execute("SELECT id, name FROM TARGET_INFO_GPU"))
        names: dict[tuple[int | None, int], str] = {(None, gpu): name for gpu, name in by_node.items()}
        if "TARGET_INFO_CUDA_DEVICE" in self._tables:
            rows = self._connection.execute("SELECT gpuId, cudaId, pid FROM TARGET_INFO_CUDA_DEVICE")
            seen = {(pid, device): by_node[gpu] for gpu, device, pid in rows if gpu in by_node}
            for process in self._processes():
                pid = process >> _THREAD_BITS & 0xFFFFFF
                names |= {(process, device): name for (of, device), name in seen.items() if of == pid}
        return names

    def _processes(self) -> Iterable[int]:
        if _KERNELS not in self._tables:
            return []
        rows = self._connection.execute(f"SELECT DISTINCT globalPid FROM {_KERNELS}")  # noqa: S608
        return [process for (process,) in rows]

    def _has(self, table: str, column: str) -> bool:
        return any(row[1] == column for row in self._connection.execute(f"PRAGMA table_info({table})"))

    def _rows(self, query: str, width: int) -> Ns:
        cursor = self._connection.execute(query)
        flat = np.fromiter(chain.from_iterable(cursor), dtype=np.int64)
        return flat.reshape(-1, width)

    def _columns(self, query: str, width: int) -> list[Ns]:
        """The same as columns, for many rows; arrays that grow in place are in memory once."""
        columns = [array("q") for _ in range(width)]
        for chunk in self._chunks(query, width):
            for column, rows in zip(columns, chunk, strict=True):
                column.frombytes(rows.tobytes())
        return [np.frombuffer(column, dtype=np.int64) for column in columns]

    def _chunks(self, query: str, width: int) -> Iterator[Ns]:
        """Of some rows at once, the columns."""
        cursor = self._connection.execute(query)
        while len(flat := np.fromiter(chain.from_iterable(islice(cursor, _ROWS_AT_ONCE)), dtype=np.int64)):
            yield flat.reshape(-1, width).T


def _calls_in_order(columns: list[array[int]], place: Ns, kind: Codes) -> HostCalls:
    """Of the columns thread, start, end, correlation and name, which are emptied one by one."""
    order = np.argsort(np.frombuffer(columns[1], dtype=np.int64), kind="stable")
    name = np.searchsorted(place, np.frombuffer(columns.pop(), dtype=np.int64)).astype(np.int32)[order]
    correlation, end, start, thread = (np.frombuffer(columns.pop(), dtype=np.int64)[order] for _ in range(4))
    return HostCalls(
        start_ns=start, end_ns=end, kind=kind[name], correlation=correlation, thread=thread, name=name
    )


def _number(payload: object) -> float | None:
    """A payload that is a finite number."""
    return float(payload) if isinstance(payload, int | float) and math.isfinite(payload) else None


def runs_of(*keys: Ns) -> list[slice]:
    """Where rows in order have the same keys, one after the other."""
    count = len(keys[0])
    changes = np.zeros(max(0, count - 1), dtype=np.bool_)
    for key in keys:
        changes |= key[1:] != key[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
    return [slice(first, last) for first, last in pairwise(bounds) if last > first]


def _are_times(start_ns: Ns, end_ns: Ns) -> Flags:
    valid: Flags = (start_ns > -_MAX_TIME_NS) & (end_ns >= start_ns) & (end_ns < _MAX_TIME_NS)
    return valid


def _named(rows: list[Ns], names: Ns, kinds: Ns | Codes) -> dict[str, Any]:
    """The columns of a table by name, from those of `_OPERATION`."""
    found = dict(zip(("start_ns", "end_ns", "device", "stream", "correlation", "process"), rows, strict=True))
    return {**found, "name": names.astype(np.int32), "kind": kinds.astype(np.uint8)}


def _copy_name(key: int) -> str:
    """As PyTorch names them, so that the tables of both profilers read alike."""
    copy, source, target = key >> 16, key >> 8 & 0xFF, key & 0xFF
    ends = f"{_MEMORY_KINDS.get(source, '?')} -> {_MEMORY_KINDS.get(target, '?')}"
    return f"Memcpy {_COPY_KINDS.get(copy, '')} ({ends})".replace("  ", " ")
