"""Targets on a training node besides its logs: traces of a capture, and datagrams of the hook."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

from perfd_collectors.hook.datagrams import description_of, parse_message, records_of

from perfd.capture.kineto.trace_contents import contents_of
from perfd.errors import PerfdError
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import TABLES, tables_of
from perfd.wire.convert import encode_record
from tests.support.traces import Op, kineto


def kineto_trace() -> bytes:
    """A small trace of PyTorch's profiler with two steps, a collective and its communicator."""
    arguments = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "In msg nelems": 8,
        "dtype": "BFloat16",
    }
    operations = [
        op
        for begin in (0, 1000)
        for op in (
            Op("gemm", begin + 10, begin + 400, launched=begin + 5),
            Op(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                begin + 400,
                begin + 900,
                stream=20,
                args=arguments,
            ),
        )
    ]
    trace = kineto(
        operations,
        steps={0: (0, 1000), 1: (1000, 2000)},
        ranges=[("Optimizer.step#AdamW.step", 900, 990)],
        world_size=2,
        groups=[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}],
        captured=(0, 2000),
    )
    return json.dumps(trace).encode()


def profiled_memory() -> bytes:
    """A trace with changes of a GPU's memory, and what the host was in meanwhile."""
    span = {"ph": "X", "pid": 1, "tid": 1, "ts": 1.5, "dur": 90.0}
    change = {"Total Reserved": 4096, "Device Id": 0, "Device Type": 1, "Addr": 2**63 + 512}
    events: list[dict[str, object]] = [
        {**span, "cat": "python_function", "name": "train.py(3): step"},
        {**span, "cat": "cpu_op", "name": "aten::mm", "args": {"Input Dims": [[2, 2]], "Sequence number": 1}},
    ]
    for at, (name, size, total) in enumerate(
        [("[memory]", 512, 1024), ("[memory]", -512, 512), ("[OutOfMemory]", 9, 512)]
    ):
        known = {**change, "Bytes": size, "Total Allocated": total}
        events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": 2 + at,
                "args": known,
            }
        )
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def read_kineto(data: bytes) -> None:
    """Check a file as the agent does at the end of a capture, then analyze it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank-0.pt.trace.json")
        path.write_bytes(data)
        with contextlib.suppress(PerfdError):
            contents_of(path)
        analyse(read_traces([path]))


def read_tables(data: bytes) -> None:
    """Make all tables of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_bytes(data)
        tables_of(read_traces([path], detailed=True), list(TABLES))


def hook_datagram() -> bytes:
    """A message of a training loop that reports its steps."""
    content = {
        "v": 1,
        "job": "j",
        "rank": 1,
        "world_size": 4,
        "layout": {"tp": 2, "dp": 2},
        "report_steps": True,
        "clock": "cuda",
        "step": 7,
        "unix_ns": 10**18,
        "step_s": 0.5,
        "phases": {"forward": 0.1, "backward": 0.2},
        "dropped": 0,
        "samples": 8,
        "tokens": 4096,
        "flops": 1e12,
        "precision": "bf16",
    }
    return json.dumps(content).encode()


def read_datagram(data: bytes) -> None:
    """Take a datagram as the `hook` collector does; what it becomes fits the wire."""
    message = parse_message(data)
    if message is None:
        return
    description = description_of(message, "j")
    for record in [*records_of([message], "j"), *([] if description is None else [description])]:
        encode_record(record)
