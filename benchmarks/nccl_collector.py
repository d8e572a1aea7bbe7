"""CPU time that the agent's `nccl` collector takes per rank, from ring buffers to encoded records.

    python -m benchmarks.nccl_collector [--ranks 8] [--operations-per-s 1000] [--seconds 20] [--json]

Segments of made-up ranks are written as the plugin writes them, outside the measured time; the collector
reads them ten times per second and reduces them once per second, by a clock that this program advances. Two
kinds of jobs: `data` is data parallel, one kind of collective on one communicator. `tensor` has tensor,
pipeline and data parallel communicators, with all-gathers, reduce-scatters, all-reduces, and sends and
receives in groups. Printed is the second that took the least CPU time: other load on the machine adds to
the rest. The reference is what Python takes for unpacking as many records, one by one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time

from perfd_collectors.nccl.collector import NcclCollector, NcclOptions

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import Batch, Record
from perfd.wire.encoded_messages import encode_batch

SCHEMA = "perfd.bench.nccl_collector/1"
_HEADER = struct.Struct("<4sIQIIIIiiiIQQ")
_COMMUNICATOR = struct.Struct("<QiiiIQ24sQ")
_RECORD = struct.Struct("<QQQQQQQQQQiHBBBBBBBBB33x")
_COUNTERS = struct.Struct("<IIQQQQQ")
_COUNTERS_AT, _TABLE_AT, _RING_AT = 256, 4096, 4096 + 256 * 64
_ENTRIES = 4096
_READS_PER_S = 10
_WARM_UP_S = 2
_ALL_GATHER, _REDUCE_SCATTER, _ALL_REDUCE, _SEND, _RECV = 2, 3, 4, 6, 7


@dataclass(frozen=True, slots=True)
class Kind:
    """One operation of a step. Those of one `group` share a kernel."""

    communicator: int
    function: int
    peer: int = 0
    grouped: bool = False


JOBS = {
    "data": [Kind(0, _ALL_REDUCE)],
    "tensor": [
        *[Kind(0, _ALL_GATHER), Kind(0, _REDUCE_SCATTER)] * 8,
        Kind(1, _SEND, peer=1, grouped=True),
        Kind(1, _RECV, peer=1, grouped=True),
        Kind(1, _SEND, peer=3, grouped=True),
        Kind(1, _RECV, peer=3, grouped=True),
        Kind(2, _ALL_REDUCE),
        Kind(3, _ALL_REDUCE),
        Kind(2, _ALL_GATHER, grouped=True),
        Kind(2, _ALL_GATHER, grouped=True),
    ],
}


@dataclass(slots=True)
class Rank:
    """A rank's segment file, written as the plugin does."""

    path: Path
    rank: int
    ranks: int
    step: Sequence[Kind]
    apart_ns: int
    """Between the beginnings of two operations."""
    written: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    file: int = -1

    def create(self, now_ns: int) -> None:
        """A segment without operations, locked as by a living process."""
        size = _RING_AT + 64 + _ENTRIES * _RECORD.size
        content = bytearray(size)
        _HEADER.pack_into(
            content, 0, b"NCL1", 1, size, os.getpid(), _ENTRIES, _RECORD.size, 256,
            self.rank, self.rank, self.ranks, 5, now_ns, 0,
        )  # fmt: skip
        for index in range(1 + max(kind.communicator for kind in self.step)):
            place = _TABLE_AT + index * _COMMUNICATOR.size
            _COMMUNICATOR.pack_into(
                content, place, 100 + index, self.rank, self.ranks, 1, 1, 0, b"name",
                1 << 63 | (0x10 + self.rank) << 8,
            )  # fmt: skip
        self.path.write_bytes(content)
        self.file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def write(self, operations: int) -> bytes:
        """Append operations; returns their records."""
        records = []
        for _ in range(operations):
            number = self.written
            kind = self.step[number % len(self.step)]
            sequence = self.sequences.get(kind.communicator, 0)
            self.sequences[kind.communicator] = sequence + 1
            begin = 1_000_000_000 + number * self.apart_ns
            # The plugin counts them up; two of a group have one number.
            group = 1 + (number // 2 * 2 if kind.grouped else number)
            point_to_point = kind.function in {_SEND, _RECV}
            record = _RECORD.pack(
                number + 1, sequence, begin, begin + 5_000, begin + self.apart_ns // 2 + 20_000,
                begin + 10_000, begin + 10_000 + self.apart_ns // 2, self.apart_ns // 2, 1 << 20, group,
                kind.peer, kind.communicator, kind.function, 9, 1, 2, 16, 16, 3, 2 * point_to_point, 0,
            )  # fmt: skip
            os.pwrite(self.file, record, _RING_AT + 64 + number % _ENTRIES * _RECORD.size)
            records.append(record)
            self.written += 1
        os.pwrite(self.file, struct.pack("<Q", self.written), _RING_AT)
        counters = _COUNTERS.pack(1, 0, self.written, self.written, 0, 0, 0)
        os.pwrite(self.file, counters, _COUNTERS_AT)
        return b"".join(records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU time of one kind of job in its least disturbed second, as ratios of a core per rank."""

    job: str
    collect_ratio: float
    encode_ratio: float
    unpack_ratio: float
    """The reference: `struct.iter_unpack` of the same records."""
    operations: int
    """Those that the records have."""
    encoded_bytes: int
    """Of all batches."""


def measure(job: str, ranks: int, operations_per_s: int, seconds: int) -> Cost:
    """CPU time of reading, reducing and encoding, per rank and second of the job's clock."""
    clock = VirtualClock()
    spent: dict[str, list[float]] = {"collect": [], "encode": [], "unpack": []}
    operations = encoded = 0

    def timed(what: str, call: Callable[[], object]) -> object:
        began_s = process_time()
        result = call()
        spent[what][-1] += process_time() - began_s
        return result

    with tempfile.TemporaryDirectory() as folder:
        made = [
            Rank(Path(folder, f"perfd-nccl-{rank}-1"), rank, ranks, JOBS[job], 10**9 // operations_per_s)
            for rank in range(ranks)
        ]
        for rank in made:
            rank.create(clock.unix_ns())
        collector = NcclCollector(
            NcclOptions(directory=folder, flight_recorder_prefix=None),
            Settings(node="n", job="job", clock=clock),
        )
        for tick in range((_WARM_UP_S + seconds) * _READS_PER_S):
            if tick % _READS_PER_S == 0:
                for seconds_s in spent.values():
                    seconds_s.append(0.0)
            written = [rank.write(operations_per_s // _READS_PER_S) for rank in made]
            clock.advance(1 / _READS_PER_S)
            records: Sequence[Record] = timed("collect", collector.collect)  # type: ignore[assignment]
            for data in written:
                timed("unpack", lambda data=data: list(_RECORD.iter_unpack(data)))
            if records:
                batch = Batch(sequence=tick + 1, sent_unix_ns=clock.unix_ns(), records=tuple(records))
                encoded += len(timed("encode", lambda batch=batch: encode_batch(batch)))  # type: ignore[arg-type]
                operations += sum(getattr(record, "count", 0) for record in records)
        collector.close()
        for rank in made:
            os.close(rank.file)
    least = {what: min(seconds_s[_WARM_UP_S:]) / ranks for what, seconds_s in spent.items()}
    return Cost(
        job=job,
        collect_ratio=least["collect"],
        encode_ratio=least["encode"],
        unpack_ratio=least["unpack"],
        operations=operations,
        encoded_bytes=encoded,
    )


def main() -> int:
    """Print one line per kind of job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--operations-per-s", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for job in JOBS:
        cost = measure(job, options.ranks, options.operations_per_s, options.seconds)
        if options.json:
            print(json.dumps({"schema": SCHEMA, **{name: getattr(cost, name) for name in Cost.__slots__}}))
        else:
            print(
                f"{job}: {cost.collect_ratio:.3%} of a core per rank to read and reduce,"
                f" {cost.encode_ratio:.3%} to encode"
                f" ({cost.operations} operations, {cost.encoded_bytes} bytes);"
                f" unpacking alone {cost.unpack_ratio:.3%}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
