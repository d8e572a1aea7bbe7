"""Traces as the profilers write them, made from plain lists."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPUTE = "void at::native::vectorized_elementwise_kernel<4>(int)"
MATMUL = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NTN"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_HOST = (100, 100)
COPY = "Memcpy HtoD (Pageable -> Device)"


@dataclass(frozen=True)
class Op:
    """An operation on the GPU; times in microseconds, `launched` when the host's call of `took` returned."""

    name: str
    start: float
    end: float
    stream: int = 7
    launched: float | None = None
    took: float = 5
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Call:
    """A call of the host that launches nothing that is recorded."""

    name: str
    start: float
    end: float
    correlation: int = 0


def kineto(
    operations: Iterable[Op],
    *,
    calls: Iterable[Call] = (),
    steps: Mapping[int, tuple[float, float]] | None = None,
    ranges: Iterable[tuple[str, float, float]] = (),
    rank: int | None = 0,
    world_size: int = 1,
    groups: Sequence[Mapping[str, Any]] = (),
    captured: tuple[float, float] | None = None,
    device: int = 0,
) -> dict[str, Any]:
    """A trace as torch 2.4 and later write it."""
    events: list[dict[str, Any]] = []
    for number, (start, end) in (steps or {}).items():
        events.append(_event("user_annotation", f"ProfilerStep#{number}", (start, end), _HOST))
        events.append(_event("gpu_user_annotation", f"ProfilerStep#{number}", (start, end), (device, 7)))
    for name, start, end in ranges:
        events.append(_event("user_annotation", name, (start, end), _HOST))
    for correlation, op in enumerate(operations, start=1):
        category = "gpu_memcpy" if op.name.startswith("Memcpy") else "kernel"
        args = {"device": device, "stream": op.stream, "correlation": correlation, **(op.args or {})}
        events.append(_event(category, op.name, (op.start, op.end), (device, op.stream), args))
        if op.launched is not None:
            name = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
            args = {"cbid": 1, "correlation": correlation}
            events.append(_event("cuda_runtime", name, (op.launched - op.took, op.launched), _HOST, args))
    for call in calls:
        args = {"cbid": 1, "correlation": call.correlation}
        events.append(_event("cuda_runtime", call.name, (call.start, call.end), _HOST, args))
    if captured:
        span = _event("Trace", "PyTorch Profiler (0)", captured, ("Spans", "PyTorch Profiler"))
        events.append(span)
    trace: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": "NVIDIA H200"}],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
    }
    if rank is not None:
        trace["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": world_size,
            "pg_config": list(groups),
        }
    return trace | {"traceEvents": events, "traceName": "trace.json"}


def _event(
    category: str,
    name: str,
    times: tuple[float, float],
    row: tuple[int | str, int | str],
    args: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": row[0],
        "tid": row[1],
        "ts": times[0],
        "dur": round(times[1] - times[0], 3),
        "args": dict(args or {}),
    }


def write_json(path: Path, trace: object, *, packed: bool = False) -> Path:
    """The trace as a file."""
    text = json.dumps(trace, indent=1).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


_KERNEL_COLUMNS = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, graphNodeId INTEGER"
)
_COPY_COLUMNS = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, "
    "dstKind INTEGER"
)


_NVTX_COLUMNS = "start, end, eventType, text, globalTid, textId, domainId, binaryData"
_NVTX_TABLE = (
    "CREATE TABLE IF NOT EXISTS NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, "
    "text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData TEXT)"
)


class NsysExport:
    """Writes a SQLite export with the tables that a capture has; only those that are used exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self._correlation = 0
        self._run("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        process: int = 1,
        device: int = 0,
        launched: int | None = None,
    ) -> None:
        """A kernel, and the call that launched it when that is known; nanoseconds."""
        self._run(f"CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_KERNEL ({_KERNEL_COLUMNS})")
        self._correlation += 1
        key, owner = self.string(name), _process(process)
        self._run(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, 7, ?, ?, ?, ?, NULL)",
            (start, end, device, self._correlation, owner, key, key),
        )
        if launched is not None:
            self.call("cudaLaunchKernel_v7000", launched - 5000, launched, process, self._correlation)

    def copy(
        self, start: int, end: int, *, process: int = 1, device: int = 0, launched: int | None = None
    ) -> None:
        """A copy from pageable memory to the device, and the call that launched it when that is known."""
        self._run(f"CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_MEMCPY ({_COPY_COLUMNS})")
        correlation = 0
        if launched is not None:
            self._correlation += 1
            correlation = self._correlation
            self.call("cudaMemcpyAsync_v3020", launched - 5000, launched, process, correlation)
        self._run(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 1, 7, ?, ?, 8, 1, 0, 2)",
            (start, end, device, correlation, _process(process)),
        )

    def graph(self, start: int, end: int, *, process: int = 1, device: int = 0) -> None:
        """A graph that was captured as a whole."""
        self._run(
            "CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, "
            "deviceId INTEGER, graphId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, "
            "globalPid INTEGER)"
        )
        self._run(
            "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, 1, 1, 7, 0, ?)",
            (start, end, device, _process(process)),
        )

    def call(self, name: str, start: int, end: int, process: int = 1, correlation: int = 0) -> None:
        """A call of the host."""
        self._run(
            "CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, "
            "eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, "
            "returnValue INTEGER)"
        )
        self._run(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
            (start, end, _process(process) | 9, correlation, self.string(name)),
        )

    def nvtx_payload(self, column: str, value: object) -> None:
        """A payload of the newest range, in the column of its type, which all rows then have."""
        known = {row[1] for row in self._connection.execute("PRAGMA table_info(NVTX_EVENTS)")}
        if column not in known:
            self._run(f"ALTER TABLE NVTX_EVENTS ADD COLUMN {column}")
        newest = "(SELECT MAX(rowid) FROM NVTX_EVENTS)"
        self._run(f"UPDATE NVTX_EVENTS SET {column} = ? WHERE rowid = {newest}", (value,))

    def nvtx(
        self, text: str, start: int, end: int | None, process: int = 1, *, kind: int = 59, domain: int = 0
    ) -> None:
        """A range that the program named, or another event of NVTX."""
        self._run(_NVTX_TABLE)
        self._run(
            f"INSERT INTO NVTX_EVENTS ({_NVTX_COLUMNS}) VALUES (?, ?, ?, ?, ?, NULL, ?, NULL)",
            (start, end, kind, text, _process(process) | 9, domain),
        )

    def nccl(
        self,
        name: str,
        start: int,
        end: int,
        payload: tuple[int, int, int] | None = None,
        *,
        process: int = 1,
        blob: bytes | None = None,
    ) -> None:
        """A range of NCCL; its payload is communicator, bytes and peer, or any blob."""
        self._run(_NVTX_TABLE)
        if "NCCL communicator ID" not in self._strings:
            self.string("NCCL communicator ID")
            self._run(
                "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, "
                "flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, "
                "offset INTEGER)"
            )
            fields = (18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)
            for at, (kind, field, offset) in enumerate(fields):
                self._run(
                    "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, 77, ?, NULL, ?, ?, NULL, NULL, ?)",
                    (at, kind, field, offset),
                )
        if payload is not None:
            body = struct.pack("<QQii", *payload, 0)
            blob = struct.pack("<IIIIQQ", 1, 0, 77, 0, len(body), 32 + len(body)) + body
        self._run(
            f"INSERT INTO NVTX_EVENTS ({_NVTX_COLUMNS}) VALUES (?, ?, 59, NULL, ?, ?, 1, ?)",
            (start, end, _process(process) | 9, self.string(name), blob),
        )

    def captured(self, duration: int) -> None:
        """How long the collection lasted."""
        self._run("CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER)")
        self._run("INSERT INTO ANALYSIS_DETAILS VALUES (1, ?)", (duration,))

    def schema(self, version: str) -> None:
        """Which schema the export says that it has."""
        self._run("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        self._run("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', ?)", (version,))

    def epoch(self, unix_ns: int) -> None:
        """When the collection began."""
        self._run("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        self._run("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (unix_ns,))

    def lost(self, name: str, count: int, process: int = 1) -> None:
        """Launches whose kernels are not in the export."""
        for at in range(count):
            self._correlation += 1
            self.call(name, at * 1000, at * 1000 + 500, process, self._correlation)

    def string(self, text: str) -> int:
        """The id of a string."""
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self._run("INSERT INTO StringIds VALUES (?, ?)", (self._strings[text], text))
        return self._strings[text]

    def execute(self, statement: str) -> None:
        """Anything else, to break the export with."""
        self._run(statement)

    def close(self) -> Path:
        """Finish the file."""
        self._connection.commit()
        self._connection.close()
        return self.path

    def _run(self, statement: str, values: Sequence[object] = ()) -> None:
        self._connection.execute(statement, values)


def _process(number: int) -> int:
    """A global process id."""
    return 0x0001000000000000 | number << 24
