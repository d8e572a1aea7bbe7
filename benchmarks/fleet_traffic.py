"""What a fleet's agents send each second: jobs that restart, clocks apart, NCCL's records, recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.fleet_agents import GPUS, batch_records, kind_of
from perfd.model import Batch, CollectiveTimes, Record, SampleTable, Scope, TimingSource, TrainingStep
from perfd.recording.records_stream import items
from perfd.wire.convert import encode_message

_CLOCKS = 5
"""Different offsets of clocks: batches of nodes with one offset are made once."""
_KEPT = 4_096
"""Encoded batches: those of some seconds."""
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What nodes send; job J has nodes J, J + jobs, J + 2 jobs and so on, 8 ranks each."""

    nodes: int
    jobs: int
    restart_every_s: int = 0
    """A job, and one agent, restart every so many seconds, in turn; 0 for none."""
    skew_s: float = 0.0
    """How far clocks are ahead or behind at most."""
    nccl_operations: int = 0
    """Of each rank and second, in NCCL's records."""
    recorded: Sequence[Sequence[Record]] = ()
    """By second, what a recorded agent sent, instead of healthy GPUs' samples; it starts over at its end."""
    batch_of: Callable[[int, int, tuple[tuple[int, int], ...]], bytes] = field(init=False, repr=False)
    """The batch of a node with seconds by number and time: (node, sequence, ((second, unix_ns), ...))."""

    def __post_init__(self) -> None:
        encoded = lru_cache(maxsize=_KEPT)(self._encoded)
        of_node = bool(self.nccl_operations or self.recorded)

        def batch_of(node: int, sequence: int, seconds: tuple[tuple[int, int], ...]) -> bytes:
            # Only what names ranks differs between nodes that report no job's progress.
            key = node if of_node else kind_of(node, self.jobs)
            return encoded(key, sequence, seconds, self.clock_offset_ns(node))

        object.__setattr__(self, "batch_of", batch_of)

    def batch(self, node: int, sequence: int, now_ns: int) -> bytes:
        """The batch of a node with the second of the same number."""
        return self.batch_of(node, sequence, ((sequence, now_ns),))

    def clock_offset_ns(self, node: int) -> int:
        """How far a node's clock is ahead."""
        # Not by job: the nodes of one job have different clocks.
        return round(self.skew_s * _SECOND_NS * (node // self.jobs % _CLOCKS / ((_CLOCKS - 1) / 2) - 1))

    def restarts(self, sequence: int) -> int | None:
        """The number of the job and of the agent that restart with this batch; None for none."""
        every = self.restart_every_s
        return sequence // every - 1 if every and sequence >= every and sequence % every == 0 else None

    def step(self, job: int, sequence: int) -> int:
        """The number of the step that a job ends with a batch: after a restart from 1 on."""
        every = self.restart_every_s
        if not every:
            return sequence
        newest = sequence // every - 1
        newest -= (newest - job) % self.jobs
        return sequence if newest < 0 else sequence - (newest + 1) * every + 1

    def _encoded(
        self, node: int, sequence: int, seconds: tuple[tuple[int, int], ...], ahead_ns: int
    ) -> bytes:
        records = [
            one for second, unix_ns in seconds for one in self._records(node, second, unix_ns + ahead_ns)
        ]
        sent_ns = seconds[-1][1] + ahead_ns
        return encode_message(Batch(sequence=sequence, sent_unix_ns=sent_ns, records=records))

    def _records(self, node: int, second: int, now_ns: int) -> list[Record]:
        if self.recorded:
            records = [
                _moved(one, node, self.jobs, now_ns)
                for one in self.recorded[second % len(self.recorded)]
                # One node of a job reports its progress.
                if node < self.jobs or not isinstance(one, TrainingStep)
            ]
        else:
            records = batch_records(second, self.jobs, node if node < self.jobs else -1, now_ns)
        records = [
            replace(one, step=self.step(node, second)) if isinstance(one, TrainingStep) else one
            for one in records
        ]
        if self.nccl_operations:
            records += [self._nccl(node, gpu, second, now_ns) for gpu in range(GPUS)]
        return records

    def _nccl(self, node: int, gpu: int, second: int, now_ns: int) -> CollectiveTimes:
        count, job = self.nccl_operations, node % self.jobs
        first, took_ns = (second - 1) * count, _SECOND_NS // (4 * count)
        return CollectiveTimes(
            job=f"job{job}",
            rank=node // self.jobs * GPUS + gpu,
            communicator=f"{job:x}",
            communicator_rank=node // self.jobs * GPUS + gpu,
            communicator_size=self.nodes // self.jobs * GPUS,
            operation="AllReduce",
            timing=TimingSource.GPU,
            start_unix_ns=now_ns - _SECOND_NS,
            end_unix_ns=now_ns,
            count=count,
            total_bytes=count * 2.0**26,
            total_s=count * took_ns / 1e9,
            min_s=took_ns / 1e9,
            max_s=took_ns / 1e9,
            sequences=range(first, first + count),
            durations_ns=[took_ns] * count,
            sizes_bytes=[1 << 26] * count,
            start_increments_us=[_SECOND_NS // count // 1000] * count,
        )


def recorded_seconds(path: Path) -> list[list[Record]]:
    """The records of a `records.bin` (docs/recordings.md), by second."""
    seconds: dict[int, list[Record]] = {}
    for item in items(path):
        seconds.setdefault(item.sent_unix_ns // _SECOND_NS, []).extend(item.records)
    return [seconds[second] for second in sorted(seconds)]


def _moved(record: Any, node: int, jobs: int, now_ns: int) -> Any:  # noqa: ANN401  (any record)
    """A recorded record as one of this node: of its job, with ranks after those of the nodes before, now."""
    if isinstance(record, SampleTable):
        times_ns = record.times_unix_ns
        ahead_ns = now_ns - max(times_ns, default=now_ns)
        entities = record.entities
        if record.scope is Scope.RANK:
            entities = [_rank_entity(entity, node, jobs) for entity in entities]
        return replace(record, times_unix_ns=[one + ahead_ns for one in times_ns], entities=entities)
    changed: dict[str, Any] = {}
    if getattr(record, "job", None):
        changed["job"] = f"job{node % jobs}"
    if getattr(record, "rank", None) is not None:
        changed["rank"] = record.rank + node // jobs * GPUS
    if getattr(record, "communicator", None):
        changed["communicator"] = f"{node:x}{record.communicator}"
    if getattr(record, "time_unix_ns", None) is not None:
        changed["time_unix_ns"] = now_ns
    if getattr(record, "end_unix_ns", None) is not None:
        ahead_ns = now_ns - record.end_unix_ns
        changed |= {"start_unix_ns": record.start_unix_ns + ahead_ns, "end_unix_ns": now_ns}
    return replace(record, **changed) if changed else record


def _rank_entity(entity: str, node: int, jobs: int) -> str:
    rank = int(entity.rpartition("/")[2]) + node // jobs * GPUS
    return f"job{node % jobs}/{rank}"
