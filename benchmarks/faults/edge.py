"""What agents would send of a simulated job: its operations through the collector's own reduction.

Each rank's operations are cut into windows of a second by the clock of its node, which is wrong by seconds;
the GPU's clock has another origin. Some operations are lost before they are read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from perfd_collectors.nccl.operations import (
    Operation,
    Operations,
    OperationTiming,
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)
from perfd_collectors.nccl.segments import FUNCTIONS, Communicator

from benchmarks.faults.scenario import Fault, Scenario
from benchmarks.faults.simulation import Executed, Trace
from perfd.analysis.data.job_data import Floats
from perfd.model import (
    CollectiveTimes,
    GpuInfo,
    JobDescription,
    LogProgress,
    ParallelLayout,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
)

JOB = "simulated"
GPUS_PER_NODE = 8
START_UNIX_S = 1_700_000_000.0
_IO_BYTES = 1e8
"""That a rank has read, when it started."""
_LOST_RATIO = 0.002
_FLOAT_32 = 7
_MAX_OPERATIONS_PER_S = 2000
_CLOCK_SIGMA_S = 2.0
_PRINT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One batch of one node, and when the aggregator gets it."""

    at_s: float
    """Since the job's start, by the true clock."""
    node: str
    sent_unix_s: float
    """By the node's clock."""
    records: tuple[Record, ...]


def batches(
    scenario: Scenario, trace: Trace, length_s: float, *, began_s: float = 0.0, first_step: int = 0
) -> list[Sent]:
    """Everything that the aggregator gets, in order; the job began then, with the step after that one."""
    random = np.random.default_rng(scenario.seed + 1)
    sent: list[Sent] = []
    for first in range(0, scenario.ranks, GPUS_PER_NODE):
        ranks = range(first, min(first + GPUS_PER_NODE, scenario.ranks))
        node = _Node(scenario, trace, ranks, random)
        node.began_s, node.first_step = began_s, first_step
        sent += node.batches(length_s)
    return sorted(sent, key=lambda batch: batch.at_s)


class _Node:
    def __init__(self, scenario: Scenario, trace: Trace, ranks: range, random: np.random.Generator) -> None:
        self.scenario, self.trace, self.ranks, self.random = scenario, trace, ranks, random
        self.name = f"node{ranks[0] // GPUS_PER_NODE}"
        off_s = dict(enumerate(scenario.clocks_off_s)).get(ranks[0] // GPUS_PER_NODE, 0.0)
        self.clock_s = START_UNIX_S + off_s + random.normal(0, _CLOCK_SIGMA_S)
        self.began_s, self.first_step = 0.0, 0
        self.phase_s = random.uniform(0.2, 1.0)
        self.silent = {scenario.rank} if scenario.fault is Fault.MISSING_RANK else set()
        self.processes = {rank: _Process(trace, rank, random) for rank in ranks}
        self.printed = 0

    def batches(self, length_s: float) -> Iterator[Sent]:
        begun = 0.0
        self.clock_s += self.began_s
        for second in range(int(length_s) + 1):
            ended = second + self.phase_s
            records: list[Record] = [] if second else list(self._introduction())
            for rank, process in self.processes.items():
                if rank not in self.silent:
                    records += process.window(begun, ended, self.clock_s)
            if self.scenario.gpu_samples:
                records.append(self._gpus(begun, ended))
            if self.ranks[0] == 0:
                records += self._log(ended)
            delay = self.random.uniform(0.01, 0.3)
            yield Sent(
                at_s=self.began_s + ended + delay,
                node=self.name,
                sent_unix_s=self.clock_s + ended,
                records=tuple(records),
            )
            begun = ended

    def _introduction(self) -> Iterator[Record]:
        scenario = self.scenario
        batch = scenario.data * scenario.micro_batches
        plain = scenario.stages == 1 and not scenario.in_dimensions
        yield JobDescription(
            job=JOB,
            framework="torchtitan" if plain or scenario.sharded_in_nodes else "megatron-lm",
            parallel=ParallelLayout(
                world_size=scenario.ranks,
                tp=scenario.tensor,
                cp=scenario.context,
                pp=scenario.stages,
                dp=scenario.data,
                ep=None if scenario.experts == 1 else scenario.experts,
                vp=None if scenario.chunks == 1 else scenario.chunks,
                micro_batch_size=1,
                global_batch_size=scenario.data if plain else batch,
            ),
        )
        for local, rank in enumerate(self.ranks):
            yield GpuInfo(index=local, name="NVIDIA H200", max_sm_clock_hz=1.98e9)
            yield RankPlacement(
                job=JOB,
                rank=rank,
                local_rank=local,
                world_size=scenario.ranks,
                gpu=local,
                pid=1000 + local + int(self.began_s),
                started_unix_ns=round(1e9 * self.clock_s),
            )

    def _log(self, until_s: float) -> Iterator[Record]:
        ends = self.trace.step_end_s
        every = max(1, round(_PRINT_S / self.scenario.step_s))
        while (last := self.printed + every - 1) < len(ends) and ends[last] <= until_s:
            begun = ends[self.printed - 1] if self.printed else 0.0
            self.printed += every
            yield TrainingStep(
                job=JOB,
                step=self.first_step + last + 1,
                time_unix_ns=round(1e9 * (self.clock_s + ends[last])),
                step_time_s=(ends[last] - begun) / every,
                steps_covered=every,
            )
        newest = ends[self.printed - 1] if self.printed else None
        yield LogProgress(
            job=JOB,
            stream="stdout",
            lines=self.printed,
            read_bytes=100 * self.printed,
            unrecognized_lines=0,
            last_line_unix_ns=None if newest is None else round(1e9 * (self.clock_s + newest)),
        )

    def _gpus(self, begun: float, ended: float) -> SampleTable:
        rows = [self.processes[rank].activity(begun, ended) for rank in self.ranks]
        names = ("graphics_active_ratio", "sm_active_ratio", "tensor_active_ratio", "busy_ratio")
        noisy = np.clip(np.array(rows) + self.random.normal(0, 0.004, (len(rows), len(names))), 0, 1)
        return SampleTable(
            scope=Scope.GPU,
            times_unix_ns=[round(1e9 * (self.clock_s + ended))] * len(rows),
            entities=[str(index) for index in range(len(rows))],
            columns={name: noisy[:, index].tolist() for index, name in enumerate(names)},
        )


class _Process:
    """One rank: its operations as the plugin writes them, and its GPU's activity."""

    def __init__(self, trace: Trace, rank: int, random: np.random.Generator) -> None:
        self.rank, self.trace, self.random = rank, trace, random
        self.executed = sorted(trace.operations[rank], key=lambda operation: operation.end_s)
        self.next = 0
        self.origin_ns = int(random.integers(1 << 40))
        self.numbers: dict[str, int] = {}
        self.communicators: dict[int, Communicator] = {}
        self.busy_s = 0.0
        self.lost = 0
        times = [0.0, *(float(ends[rank]) for ends in trace.ends_s)]
        self.times: Floats = np.array(times)
        amounts = (trace.compute_s, trace.exposed_s, trace.idle_s)
        self.amounts = [
            np.concatenate([[0.0], np.cumsum([row[rank] for row in amount])]) for amount in amounts
        ]

    def window(self, begun: float, ended: float, clock_s: float) -> list[Record]:
        taken: list[Operation] = []
        while self.next < len(self.executed) and self.executed[self.next].end_s <= ended:
            operation = self._operation(self.executed[self.next])
            self.next += 1
            if self.random.random() < _LOST_RATIO:
                self.lost += 1
            else:
                taken.append(operation)
        operations = Operations.of(taken)
        self.busy_s += busy_ns(operations) / 1e9
        window = OperationWindow(
            job=JOB,
            rank=self.rank,
            start_unix_ns=round(1e9 * (clock_s + begun)),
            end_unix_ns=round(1e9 * (clock_s + ended)),
        )
        keep = keep_one_in(len(taken), window.end_unix_ns - window.start_unix_ns, _MAX_OPERATIONS_PER_S)
        records: list[CollectiveTimes] = reduce_operations(
            operations, self.communicators, window, keep_one_in=keep
        )
        return [*records, self._totals(window)]

    def activity(self, begun: float, ended: float) -> tuple[float, float, float, float]:
        """Graphics, SM and tensor activity, and NVML's utilisation, over an interval."""
        span = ended - begun
        compute, exposed, idle = (
            float(np.interp(ended, self.times, amount) - np.interp(begun, self.times, amount)) / span
            for amount in self.amounts
        )
        compute -= idle
        if self.trace.hung_at_s is not None and begun >= self.trace.hung_at_s:
            compute, exposed = 0.0, 0.0 if self._is_culprit() else 1.0
        kernels = min(1.0, compute + exposed)
        return kernels, 0.92 * compute + 0.1 * exposed, 0.6 * compute, kernels

    def _is_culprit(self) -> bool:
        return self.trace.culprit == self.rank

    def _operation(self, executed: Executed) -> Operation:
        number = self.numbers.setdefault(executed.communicator, len(self.numbers))
        if number not in self.communicators:
            self.communicators[number] = Communicator(
                index=number,
                id=zlib.crc32(f"{executed.communicator}{executed.members}".encode()),
                rank=executed.members.index(self.rank),
                ranks=len(executed.members),
                nodes=None,
                live=True,
                name="",
            )
        pair = executed.function in {"Send", "Recv"}
        start, stop = (self.origin_ns + round(1e9 * at) for at in (executed.start_s, executed.end_s))
        return Operation(
            sequence=self.next,
            operation_sequence=executed.sequence,
            start_monotonic_ns=start,
            stop_monotonic_ns=start,
            complete_monotonic_ns=stop,
            gpu_start_ns=start,
            gpu_stop_ns=stop,
            gpu_longest_ns=stop - start,
            elements=executed.size_bytes // 4,
            group=0,
            peer_or_root=executed.peer,
            communicator=number,
            function=FUNCTIONS.index(executed.function),
            datatype=_FLOAT_32,
            algorithm=1,
            protocol=2,
            channels=16,
            channels_seen=16,
            timing=OperationTiming.GPU,
            flags=2 if pair else 0,
        )

    def _totals(self, window: OperationWindow) -> SampleTable:
        # In a hang all but one have begun one operation more.
        begun = self.next + (self.trace.hung_at_s is not None and not self._is_culprit())
        return SampleTable(
            scope=Scope.RANK,
            times_unix_ns=[window.end_unix_ns],
            entities=[f"{JOB}/{self.rank}"],
            columns={
                "nccl_busy_s": [self.busy_s],
                "nccl_operations": [float(begun)],
                "nccl_lost_operations": [float(self.lost)],
                "nccl_untimed_operations": [0.0],
                # As of each process; threads that launch its work are not known.
                "io_bytes": [_IO_BYTES],
            },
        )
