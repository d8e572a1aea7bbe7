"""Time to split a step's collectives into transfer and waiting, and to diagnose the job, on very many ranks.

    python -m benchmarks.waiting [--ranks 16384] [--held 12] [--rounds 15] [--json]

A made job: tensor parallel 8, 8 stages, the rest data parallel. Each rank has all-gathers and
reduce-scatters of its tensor group, transfers to each neighbour stage and reductions of its data-parallel
group: 16 of each in a step, thinned out by the agent to one. Three such jobs are looked at by turns: in one
of them one rank is late; in one nobody is, which takes longer to say: longer stretches are searched; in one a
rank becomes late with the first round, so that its fault fills the stretch that is judged, round by round.

Round by round the records of one more step come in, as they do from the agents of all nodes, and then the
aggregator looks at the job as it does live: it copies what it holds, the newest `--held` operations of each
kind (at most 64), and makes the summary. Nothing is kept from one look to the next one but freed memory, as
`perfd aggregator` keeps it, whose settings of Python's collector hold, too. Not timed is what comes before,
gRPC and protobuf; and these jobs have no samples of GPUs.

`--json` prints one object: `schema`, and of each job `ranks`, `communicators`, `durations` and `records` held
in all; `late`, `nobody_late` and `newly_late`, each with `median` and `min` over rounds, in milliseconds, of
`arrival_ms`, `copy_ms`, `diagnosis_ms`, of which `split_ms` is a part, and `look_ms`, copy and diagnosis
together; `right`, whether in all rounds the rank that is always late was named, and nobody in the job without
one; and `newly_named`, in how many rounds the one that becomes late was, from round `newly_named_from` on, or
null. Its steps are longer by as much as it is late, and fewer than four of them name nobody.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state import Fleet, job_data
from perfd.analysis.data.job_data import CollectiveStack, Ints
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.operations.communicator_waits import stacked
from perfd.model import (
    CollectiveTimes,
    JobDescription,
    ParallelLayout,
    Record,
    SampleTable,
    Scope,
    TimingSource,
    TrainingStep,
)
from perfd.process_memory import tune_memory

SCHEMA = "perfd.bench.waiting/5"
TENSOR, STAGES, PER_NODE = 8, 8, 8
LATE_RANK = 77
_JOB = "made"
_STEP_NS = 1_000_000_000
_TRANSFER_NS, _LATE_NS, _NOISE_NS = 1_000_000, 10_000_000, 10_000
_LAGS = 10
"""Of a late rank from one reduction of gradients to the next one."""
_KEEP = 16
"""Operations of a kind in a step, of which one is kept."""
_BEGUN = 1000
"""The job runs for so many steps already."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Communicators that do alike."""

    name: str
    operation: str
    ranks: Ints
    """(communicators, members)"""
    late_ns: Ints
    """By rank."""


@dataclass(slots=True)
class _Times:
    """Of each round, in seconds."""

    arrival: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    diagnosis: list[float] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    """A part of the diagnosis, timed once more by itself."""

    def milliseconds(self) -> dict[str, dict[str, float]]:
        """Median and minimum of each."""
        looks = [copy + diagnosis for copy, diagnosis in zip(self.copy, self.diagnosis, strict=True)]
        columns = {
            "arrival_ms": self.arrival,
            "copy_ms": self.copy,
            "split_ms": self.split,
            "diagnosis_ms": self.diagnosis,
            "look_ms": looks,
        }
        return {
            name: {"median": 1000 * statistics.median(times), "min": 1000 * min(times)}
            for name, times in columns.items()
        }


class MadeJob:
    """A job of that many ranks in the state of an aggregator, step by step; `late` is one of them, if any."""

    def __init__(self, ranks: int, held: int, late: int | None) -> None:
        self._late: list[int] = []
        span = _KEEP * held
        limits = Limits(operations_per_communicator=span, fewest_operations_per_communicator=span)
        self._fleet = Fleet(limits, AggregatorCounters())
        self._ranks = ranks
        self.set_late(late)
        self._random = np.random.default_rng(1)
        self._step, self._end_ns = _BEGUN, _BEGUN * _STEP_NS
        data = ranks // (TENSOR * STAGES)
        self.layout = ParallelLayout(world_size=ranks, tp=TENSOR, cp=1, pp=STAGES, dp=data)
        self.apply([[JobDescription(job=_JOB, framework="megatron-lm", parallel=self.layout)]])

    def set_late(self, late: int | None) -> None:
        """Who is late from the next step on, if anybody, by which steps are longer from then on."""
        self._late = [] if late is None else [late]
        self._groups = _groups(self._ranks, self._late)
        self._lengthened_ns = _LAGS * _LATE_NS * len(self._late)

    def records(self, steps: int = 1) -> list[list[Record]]:
        """Records of the next steps by node; each has all of a rank's operations of one kind."""
        step_ns = _STEP_NS + self._lengthened_ns
        numbers = range(self._step + 1, self._step + steps + 1)
        ends_ns = [self._end_ns + step_ns * (step - self._step) for step in numbers]
        self._step, self._end_ns = numbers[-1], ends_ns[-1]
        nodes: list[list[Record]] = [[] for _ in range(self._ranks // PER_NODE)]
        for group in self._groups:
            for times in self._times(group, numbers, ends_ns):
                nodes[times.rank // PER_NODE].append(times)
        for node, records in enumerate(nodes):
            ranks = range(node * PER_NODE, (node + 1) * PER_NODE)
            records += [_counters(ranks, *times) for times in zip(numbers, ends_ns, strict=True)]
        nodes[0] += [
            TrainingStep(job=_JOB, step=step, step_time_s=step_ns / 1e9, time_unix_ns=end_ns)
            for step, end_ns in zip(numbers, ends_ns, strict=True)
        ]
        return nodes

    def apply(self, nodes: Sequence[Sequence[Record]]) -> None:
        """Take what agents tell, a batch a node."""
        for node, records in enumerate(nodes):
            name = f"node{node}"
            now_s = self._end_ns / 1e9
            self._fleet.apply(records, RecordSource(agent_id=name, node=name, sent_unix_s=now_s, now_s=now_s))

    def round(self, times: _Times) -> bool:
        """One more step and a look at it; returns whether who is late is named, and nobody else."""
        records = self.records()
        clock = time.perf_counter
        begun = clock()
        self.apply(records)
        # As in the aggregator, nothing but its state is left of a batch.
        del records
        arrived = clock()
        now_s = self._end_ns / 1e9
        data = job_data(self._fleet, self._fleet.jobs[_JOB], now_unix_s=now_s, now_s=now_s)
        copied = clock()
        summary = summarise(data, AnalysisSettings())
        diagnosed = clock()
        stacked(data.collectives, self.layout)
        times.split.append(clock() - diagnosed)
        times.arrival.append(arrived - begun)
        times.copy.append(copied - arrived)
        times.diagnosis.append(diagnosed - copied)
        return [culprit.id for culprit in summary.bottleneck.culprits] == self._late

    def stacks(self) -> list[CollectiveStack]:
        """What the aggregator holds of collectives."""
        return self._fleet.jobs[_JOB].communication.collectives.stacks()

    def _times(
        self, group: _Group, steps: Sequence[int], ends_ns: Sequence[int]
    ) -> Iterator[CollectiveTimes]:
        late_ns = group.late_ns[group.ranks]
        begun_ns = late_ns[..., None] + np.array(ends_ns) - _STEP_NS // 2
        durations_ns = (late_ns.max(axis=1, keepdims=True) - late_ns + _TRANSFER_NS)[..., None]
        durations_ns = durations_ns + self._random.integers(0, _NOISE_NS, begun_ns.shape)
        sequences = [_KEEP * step for step in steps]
        columns = (group.ranks.tolist(), durations_ns.tolist(), begun_ns.tolist())
        for index, (ranks, durations, starts) in enumerate(zip(*columns, strict=True)):
            for place, (rank, each_ns, starts_ns) in enumerate(zip(ranks, durations, starts, strict=True)):
                pair = group.operation == "Send"
                yield CollectiveTimes(
                    job=_JOB,
                    rank=rank,
                    communicator=f"{group.name}-{index}",
                    communicator_rank=place,
                    communicator_size=len(ranks),
                    operation="Recv" if pair and place else group.operation,
                    peer=1 - place if pair else None,
                    timing=TimingSource.GPU,
                    start_unix_ns=ends_ns[0] - _STEP_NS - self._lengthened_ns,
                    end_unix_ns=ends_ns[-1],
                    count=_KEEP * len(ends_ns),
                    total_s=_KEEP * sum(each_ns) / 1e9,
                    min_s=min(each_ns) / 1e9,
                    max_s=max(each_ns) / 1e9,
                    sequences=sequences,
                    durations_ns=each_ns,
                    sizes_bytes=[64_000_000] * len(ends_ns),
                    gpu_starts_ns=starts_ns if pair else (),
                )


def measure(ranks: int = 16_384, held: int = 12, rounds: int = 15) -> dict[str, Any]:
    """Milliseconds of a step's arrival, of the copy of what is held, and of the diagnosis with its split."""
    tune_memory()
    jobs = [MadeJob(ranks, held, late) for late in (LATE_RANK, None, None)]
    for job in jobs:
        job.apply(job.records(held))
        job.round(_Times())
    times, right, newly_named = [_Times() for _ in jobs], True, list[int]()
    jobs[-1].set_late(LATE_RANK)
    for number in range(1, rounds + 1):
        for job, of_job in zip(jobs, times, strict=True):
            named = job.round(of_job)
            right &= named or job is jobs[-1]
            newly_named += [number] * (named and job is jobs[-1])
    stacks = jobs[0].stacks()
    return {
        "schema": SCHEMA,
        "ranks": ranks,
        "communicators": sum(len(stack.communicators) for stack in stacks),
        "durations": sum(stack.durations_s.size for stack in stacks),
        "records": sum(stack.ranks.size for stack in stacks),
        "late": times[0].milliseconds(),
        "nobody_late": times[1].milliseconds(),
        "newly_late": times[2].milliseconds(),
        "right": right,
        "newly_named": len(newly_named),
        "newly_named_from": min(newly_named, default=None),
    }


def _groups(ranks: int, late: Sequence[int]) -> list[_Group]:
    data = ranks // (TENSOR * STAGES)
    grid = np.arange(ranks).reshape(STAGES, data, TENSOR)
    tensor, replicas = grid.reshape(-1, TENSOR), grid.transpose(0, 2, 1).reshape(-1, data)
    alone_ns = np.where(np.isin(np.arange(ranks), late), _LATE_NS, 0)
    # Its tensor group is late with it for what the stage does together, by all of its lags in between.
    late_ns = _LAGS * alone_ns[tensor].max(axis=1).repeat(TENSOR)
    neighbours = [
        np.stack([grid[first].ravel(), grid[first + 1].ravel()], axis=1) for first in range(STAGES - 1)
    ]
    return [
        _Group("tp", "AllGather", tensor, alone_ns),
        _Group("tp", "ReduceScatter", tensor, alone_ns),
        _Group("dp", "ReduceScatter", replicas, late_ns),
        *(_Group(f"pp{first}", "Send", pairs, late_ns) for first, pairs in enumerate(neighbours)),
    ]


def _counters(ranks: Sequence[int], step: int, time_unix_ns: int) -> SampleTable:
    return SampleTable(
        scope=Scope.RANK,
        times_unix_ns=[time_unix_ns] * len(ranks),
        entities=[f"{_JOB}/{rank}" for rank in ranks],
        columns={
            "nccl_busy_s": [0.5 * step] * len(ranks),
            "nccl_operations": [float(4 * _KEEP * step)] * len(ranks),
            "nccl_lost_operations": [0.0] * len(ranks),
        },
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=16_384, help="a multiple of 64")
    parser.add_argument("--held", type=int, default=12, help="operations of a kind in memory, at most 64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    args = parser.parse_args()
    result = measure(args.ranks, args.held, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{result['ranks']} ranks, {result['communicators']} communicators, {result['durations']} durations"
    )
    cases = "".join(f"{case:>16}" for case in ("one is late", "nobody is", "one becomes"))
    print(f"{f'median and least of {args.rounds} rounds, in ms':44}{cases}")
    for name, words in (
        ("arrival_ms", f"{result['records']} records of a step are taken in"),
        ("copy_ms", "the look: what is held is copied"),
        ("split_ms", "(split into transfer and waiting)"),
        ("diagnosis_ms", "the look: split, and all that follows"),
        ("look_ms", "the look in all"),
    ):
        columns = (result[case][name] for case in ("late", "nobody_late", "newly_late"))
        print(f"{words:44}" + "".join(f"{one['median']:8.1f}{one['min']:8.1f}" for one in columns))
    print(f"who is late is named, and nobody else: {result['right']}")
    first = f", from round {result['newly_named_from']} on" if result["newly_named"] else ""
    print(f"who becomes late is named in {result['newly_named']} of {args.rounds} rounds{first}")


if __name__ == "__main__":
    main()
