"""Targets whose input is read and then analyzed: profiles, segments, expressions and batches."""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from perfd_collectors.nccl.job_ranks import JobRanks
from perfd_collectors.nccl.operations import SegmentReader
from perfd_collectors.nccl.segments import NO_RANKS
from perfd_collectors.nccl.segments.segment import MAGIC, Segment

from perfd.aggregator.failures import Failures, Part
from perfd.aggregator.ingest.table_groups import decoders
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state import Fleet, job_data
from perfd.analysis.data.analysis_settings import AnalysisSettings
from perfd.analysis.diagnosis import summarise, to_json
from perfd.errors import PerfdError
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import (
    AgentMessage,
    Batch,
    CollectiveTimes,
    JobDescription,
    MemoryReport,
    ParallelLayout,
    RankPlacement,
    TimingSource,
    TrainingStep,
)
from perfd.rules.promql.compiler import compile_query
from perfd.rules.series_store import SeriesStore
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers.trace_files import read_traces
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_message, encode_record
from perfd.wire.sample_tables import TableReader, decode_table
from tests.support.traces import NsysExport

_SEGMENT_HEADER = struct.Struct("<4sIQIIIIiiiIQQ")
_SEGMENT_RECORD = struct.Struct("<QQQQQQQQQQiHBBBBBBBBB33x")
_RINGS_AT, _RING_AT, _RING_ENTRIES = 256, 4096 + 256 * 64, 64
_NAME = re.compile(r"perfd_[a-z0-9_]+|node_[a-z0-9_]+|up")
_TIMES = re.compile(r"array\('q', (\[[^]]*\])\)")
_START_S = 1.7e9


def nsys_export() -> bytes:
    """A small SQLite export of Nsight Systems."""
    with tempfile.TemporaryDirectory() as folder:
        export = NsysExport(Path(folder, "t.sqlite"))
        for step in range(4):
            at = step * 1_000_000
            export.nvtx(f"step {step}", at, at + 900_000)
            export.kernel("gemm", at + 10_000, at + 400_000, launched=at + 8_000)
            export.nccl("ncclAllReduce", at + 3_000, at + 9_100, (0xABC, 4096, 0))
            export.kernel("ncclDevKernel_AllReduce", at + 400_000, at + 800_000, launched=at + 9_000)
            export.call("cudaStreamSynchronize", at + 9_500, at + 900_000)
        export.captured(4_000_000)
        export.schema("3.20.3")
        export.epoch(round(_START_S * 1e9))
        return export.close().read_bytes()


def read_nsys(data: bytes) -> None:
    """Analyze a file as an export of Nsight Systems."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.sqlite")
        path.write_bytes(data)
        analyse(read_traces([path]))


def segment() -> bytes:
    """A segment of the NCCL plugin whose ring was written to the end and over it."""
    content = bytearray(_RING_AT + 64 + _RING_ENTRIES * _SEGMENT_RECORD.size)
    header = (MAGIC, 1, len(content), 7, _RING_ENTRIES, _SEGMENT_RECORD.size, 256, 0, 0, 2, 5, 1, 1)
    _SEGMENT_HEADER.pack_into(content, 0, *header)
    struct.pack_into("<I", content, _RINGS_AT, 1)
    struct.pack_into("<Q", content, _RING_AT, 100)
    for position in range(100 - _RING_ENTRIES, 100):
        place = _RING_AT + 64 + position % _RING_ENTRIES * _SEGMENT_RECORD.size
        times = [1000 * position + n for n in range(8)]
        _SEGMENT_RECORD.pack_into(content, place, position + 1, position, *times, 0, *[1] * 10)
    return bytes(content)


def read_segment(data: bytes) -> None:
    """Read a file as the agent reads a segment, twice."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "perfd-nccl-1-x")
        path.write_bytes(data)
        opened = Segment(path)
        try:
            reader = SegmentReader(opened, round(_START_S * 1e9), None)
            ranks = JobRanks(Path("/proc"))
            for second in (1, 2):
                reader.read()
                numbers = ranks.number({path: reader}, {path: reader.process.pid}).get(path, NO_RANKS)
                for record in reader.report("j", round((_START_S + second) * 1e9), 1_000, numbers):
                    encode_record(record)
        finally:
            opened.close()


def queries(rules: Sequence[bytes]) -> list[bytes]:
    """The expressions of rules files, and a few with what these do not use."""
    found = [
        line.partition(b"expr:")[2].strip()
        for text in rules
        for line in text.splitlines()
        if b"expr:" in line and not line.rstrip().endswith((b"|", b">-", b">"))
    ]
    more = (
        b"quantile_over_time(0.9, up[5m]) or absent(up)",
        b'label_replace(up, "a", "$1", "job", "(.*)") * on (rank) group_left () up',
        b"topk(2, rate(up[1m])) > bool 1 ^ 2 % 3",
    )
    return [*(one.strip(b"'\"") for one in found), *more]


def evaluation(rules: Sequence[bytes]) -> Callable[[bytes], None]:
    """Evaluates an expression over series of all names that rules use."""
    names = sorted({name for text in rules for name in _NAME.findall(text.decode())})
    keys = [
        SeriesKey.of(name, {"job": "j", "perfd_job": "j", "rank": str(rank), "le": str(rank)})
        for name in names
        # Unchanged expressions match one series to one.
        for rank in range(1 + (name == "up"))
    ]
    store = SeriesStore()
    for second in range(0, 300, 10):
        values = np.array([second * (1 + at % 3) for at in range(len(keys))], dtype=float)
        values[second % 7 :: 7] = np.nan
        store.append(SeriesFrame(float(second), keys, values))

    def run(data: bytes) -> None:
        query = compile_query(data.decode("utf-8", "replace"))
        for time_s in (0, 290):
            for key, value in query.evaluate(store, time_s * 1000).samples():
                str(key), float(value)

    return run


def batch() -> bytes:
    """A batch of an agent with the records that the analysis reads most."""
    records = [
        JobDescription(job="j", framework="m", parallel=ParallelLayout(world_size=2, dp=2)),
        *(RankPlacement(job="j", rank=rank, gpu=rank, pid=1, world_size=2) for rank in range(2)),
        MemoryReport(job="j", step=1, rank=0, max_reserved_bytes=1e9, max_allocated_bytes=9e8),
        *(
            TrainingStep(
                job="j",
                step=step,
                step_time_s=1.0 + step % 3,
                time_unix_ns=round((_START_S + step) * 1e9),
                global_batch_size=8,
            )
            for step in range(1, 12)
        ),
        *(
            CollectiveTimes(
                job="j",
                rank=rank,
                communicator="c",
                operation="AllReduce",
                timing=TimingSource.GPU,
                start_unix_ns=round((_START_S + second) * 1e9),
                end_unix_ns=round((_START_S + second + 1) * 1e9),
                count=2,
                total_bytes=2e6,
                total_s=0.2,
                min_s=0.1,
                max_s=0.1,
                sequences=[2 * second, 2 * second + 1],
                durations_ns=[10**8, 10**8],
                sizes_bytes=[10**6, 10**6],
                communicator_rank=rank,
                communicator_size=2,
            )
            for second in range(5)
            for rank in range(2)
        ),
    ]
    return encode_message(Batch(sequence=1, sent_unix_ns=round(_START_S * 1e9), records=records))


class _Raised(Failures):
    """What cannot be applied is an error here, and not only counted."""

    def note(self, part: Part, error: Exception, *, job: str = "", node: str = "", record: str = "") -> None:
        raise error


def analyze_batch(data: bytes) -> None:
    """Take a batch into a fleet and derive the numbers of each of its jobs, as a round does."""
    message = decode_agent_message(data)
    if not isinstance(message, Batch):
        return
    fleet = Fleet(Limits(), AggregatorCounters(), _Raised())
    source = RecordSource(agent_id="a", node="n", sent_unix_s=message.sent_unix_ns / 1e9, now_s=1000.0)
    fleet.apply(message.records, source)
    for job in fleet.jobs.values():
        to_json([summarise(job_data(fleet, job, now_unix_s=_START_S, now_s=1000.0), AnalysisSettings())])


def read_next_batch(first: bytes, data: bytes) -> None:
    """Read a batch as the second of its stream, and with others; both are as if it were the first."""
    reader = TableReader()
    decode_agent_message(first, reader.decode)
    alone = _shown(partial(decode_agent_message, data, decode_table))
    assert _shown(partial(decode_agent_message, data, reader.decode)) == alone
    assert {_shown(decode) for decode in decoders([(reader, data)] * 8)} == {alone}


def _shown(decode: Callable[[], AgentMessage | None]) -> str:
    try:
        return _TIMES.sub(r"\1", repr(decode()))
    except PerfdError as error:
        return repr(error)
