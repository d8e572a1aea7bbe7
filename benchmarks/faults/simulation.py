"""A training job, simulated operation by operation: when each rank computes, and when its NCCL kernels run.

Ranks' hosts and GPUs are one here: a rank does one thing after the other, and its collectives run beside
the backward pass when `overlap` is set. A collective begins on a rank when that rank comes to it and the one
before it in its communicator is over, and ends on all ranks when the last one has come and the transfer is
done; a send and its receive end together, too. With stages, micro-batches follow the 1F1B schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.faults.scenario import Fault, Scenario
from perfd.analysis.data.job_data import Floats

_FORWARD, _OPTIMIZER = 0.31, 0.05
_LOSS_S = 20e-6
_START_UP_STEPS = (6.0, 1.5, 1.1)
"""By how much the first steps are longer: compilation, allocation, autotuning."""
_START_SPREAD_S = 1.5
_HICCUP_S = 0.02
_PIPELINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Executed:
    """One operation of one rank, in seconds since the job's start."""

    communicator: str
    function: str
    members: tuple[int, ...]
    peer: int
    sequence: int
    start_s: float
    end_s: float
    size_bytes: int


@dataclass(slots=True)
class Trace:
    """What happened, by rank, and what a timer in each rank would have measured."""

    operations: list[list[Executed]]
    step_end_s: list[float] = field(default_factory=list)
    """Of rank 0, which prints."""
    compute_s: list[Floats] = field(default_factory=list)
    """Steps by ranks: input, stalls and compute, without communication."""
    exposed_s: list[Floats] = field(default_factory=list)
    """Time in which a rank does nothing but communicate."""
    idle_s: list[Floats] = field(default_factory=list)
    """Time in which its GPU has nothing to do."""
    ends_s: list[Floats] = field(default_factory=list)
    hung_at_s: float | None = None
    culprit: int | None = None
    """The rank that hangs."""


def simulate(scenario: Scenario) -> Trace:
    """Run the job to its end, or to where it hangs."""
    return Job(scenario).run()


class Job:
    """A job that is simulated step by step."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = np.random.default_rng(scenario.seed)
        count = scenario.ranks
        self.free: Floats = self.random.uniform(0, _START_SPREAD_S, count)
        self.chips: Floats = self.random.normal(0, scenario.world.chip_sigma, count)
        self.drift: Floats = self.random.normal(0, scenario.world.drift_sigma, count)
        self.sequences: dict[tuple[str, str, int], int] = {}
        self.trace = Trace([[] for _ in range(count)])
        self.residuals = np.asarray(scenario.world.residuals)
        self.weights: Floats = np.ones(scenario.stages)

    def run(self) -> Trace:
        scenario, number = self.scenario, 0
        while self.free.min() < scenario.length_s:
            faulty = self.free.min() >= scenario.onset_s
            if faulty and scenario.fault is Fault.HANG:
                return self._hang()
            self._step(number, faulty=faulty)
            number += 1
        return self.trace

    def _step(self, number: int, *, faulty: bool) -> None:
        scenario, begun = self.scenario, self.free.copy()
        strength = scenario.strength if faulty else 0.0
        pace = self._pace(number, strength)
        stall, work = self._before(number, strength)
        if faulty and scenario.fault is Fault.CHECKPOINT and number % 60 == 0:
            self.free += 20 * scenario.step_s * self.random.uniform(1, 1.05, scenario.ranks)
            self.free[0] += 2 * scenario.step_s
        self.free += stall + work
        busy = pace * scenario.step_s * (1 - scenario.transfer_ratio)
        computed = self._pipeline(busy) if scenario.stages > 1 else self._data_parallel(busy, strength)
        self._reduce_norm()
        update = busy * _OPTIMIZER
        # Whoever prints reads the loss first.
        self.free += update
        self.free[0] += self.random.uniform(0.2e-3, 1e-3)
        computed += update + work
        self.trace.compute_s.append(computed + stall)
        self.trace.idle_s.append(stall.copy())
        self.trace.exposed_s.append(np.maximum(0.0, self.free - begun - computed - stall))
        self.trace.ends_s.append(self.free.copy())
        self.trace.step_end_s.append(float(self.free[0]))

    def _pace(self, number: int, strength: float) -> Floats:
        """By how much the compute of each rank is longer in this step than it should be."""
        scenario, world, count = self.scenario, self.scenario.world, self.scenario.ranks
        keep = float(np.exp(-1 / world.drift_steps))
        fresh = self.random.normal(0, world.drift_sigma * np.sqrt(1 - keep**2), count)
        self.drift = keep * self.drift + fresh
        odd = np.where(self.random.random(count) < 0.3, self.random.choice(self.residuals, count), 0.0)
        pace = np.exp(self.chips + self.drift + odd)
        if number < len(_START_UP_STEPS):
            pace *= _START_UP_STEPS[number] * self.random.uniform(1, 1.2, count)
        if scenario.fault is Fault.SLOW_CLOCK or scenario.fault is Fault.MISSING_RANK:
            pace[scenario.rank] *= 1 + strength
        if scenario.fault is Fault.SEQUENCES:
            pace *= np.exp(self.random.normal(0, strength, count))
        self.weights[-1] = 1 + strength if scenario.fault is Fault.HEAVY_LAST_STAGE else 1.0
        return pace

    def _before(self, number: int, strength: float) -> tuple[Floats, Floats]:
        """Seconds before the forward pass in which a rank's GPU idles, and in which it does other work."""
        scenario, count = self.scenario, self.scenario.ranks
        stall = np.where(
            self.random.random(count) < scenario.world.hiccups_per_step,
            self.random.exponential(_HICCUP_S, count),
            0.0,
        )
        work = np.zeros(count)
        cost = strength * scenario.step_s
        match scenario.fault:
            case Fault.OTHER_WORK:
                work[scenario.rank] += cost
            case Fault.SLOW_LOADER | Fault.TINY_KERNELS:
                stall[scenario.rank] += cost * self.random.uniform(0.9, 1.1)
            case Fault.FORCED_SYNC if number % 5 == 0:
                stall[scenario.rank] += 5 * cost
            case Fault.SLOW_LOADERS:
                stall += cost * self.random.uniform(0.9, 1.1, count)
            case Fault.HICCUPS:
                stall += np.where(self.random.random(count) < 0.1, cost, 0.0)
            case Fault.LATE_ENTRY if scenario.stages > 1:
                stall[scenario.rank] += cost
        return stall, work

    def _data_parallel(self, busy: Floats, strength: float) -> Floats:
        scenario = self.scenario
        self.free += busy * _FORWARD
        if scenario.fault is Fault.LATE_ENTRY:
            self.free[scenario.rank] += strength * scenario.step_s
        backward = busy * (1 - _FORWARD - _OPTIMIZER)
        members = np.arange(scenario.ranks)
        transfer = self._transfer_s(strength, first=True) / scenario.buckets
        if not scenario.overlap:
            self.free += backward
            for _ in range(scenario.buckets):
                self.free = self._collective("dp0", "AllReduce", members, self.free, transfer, self._bytes())
        else:
            self.free = self._overlapped(members, backward, transfer)
        return busy * (1 - _OPTIMIZER)

    def _overlapped(self, members: np.ndarray[Any, Any], backward: Floats, transfer: float) -> Floats:
        buckets = self.scenario.buckets
        ready, end = self.free.copy(), np.zeros(len(members))
        for bucket in range(buckets):
            ready = ready + backward / buckets
            size = self._bytes() // (2 if bucket == 0 else 1)
            end = self._collective("dp0", "AllReduce", members, np.maximum(ready, end), transfer, size)
        return np.maximum(ready, end)

    def _pipeline(self, busy: Floats) -> Floats:
        """1F1B over all data-parallel replicas at once; each stage's compute in it is returned."""
        scenario = self.scenario
        stages, data, batches = scenario.stages, scenario.data, scenario.micro_batches
        per_stage = busy.reshape(stages, data) * self.weights[:, None] / batches
        forward, backward = per_stage * _FORWARD, per_stage * (1 - _FORWARD - _OPTIMIZER)
        free = self.free.reshape(stages, data)
        done: dict[tuple[str, int, int], Floats] = {}
        plans = [_one_forward_one_backward(stage, stages, batches) for stage in range(stages)]
        while any(plans):
            for stage, plan in enumerate(plans):
                while plan:
                    kind, batch = plan[0]
                    source = stage - 1 if kind == "F" else stage + 1
                    if 0 <= source < stages:
                        sent = done.get((kind, source, batch))
                        if sent is None:
                            break
                        free[stage] = self._send(source, stage, sent, free[stage])
                    free[stage] = free[stage] + (forward if kind == "F" else backward)[stage]
                    done[kind, stage, batch] = free[stage].copy()
                    plan.pop(0)
        self.free = free.reshape(-1)
        strength = scenario.strength if self.free.min() >= scenario.onset_s else 0.0
        for stage in range(stages):
            members = np.arange(stage * data, (stage + 1) * data)
            transfer = self._transfer_s(strength, first=stage == 0)
            name = f"dp{stage}"
            self.free[members] = self._collective(
                name, "AllReduce", members, self.free[members], transfer, self._bytes()
            )
        return (per_stage * batches).reshape(-1) * (1 - _OPTIMIZER)

    def _send(self, source: int, target: int, sent: Floats, free: Floats) -> Floats:
        """Times at which the receivers have it; the senders go on meanwhile."""
        data = self.scenario.data
        end = np.maximum(sent, free) + _PIPELINE_BYTES / 200e9
        for replica in range(data):
            pair = tuple(stage * data + replica for stage in range(self.scenario.stages))
            times = ((source, "Send", target, sent[replica]), (target, "Recv", source, free[replica]))
            for own, function, peer, start in times:
                rank = own * data + replica
                self._note(f"pp{replica}", function, pair, rank, peer, start, end[replica], _PIPELINE_BYTES)
        return end

    def _collective(  # noqa: PLR0917
        self,
        name: str,
        function: str,
        members: np.ndarray[Any, Any],
        start: Floats,
        transfer: float,
        size: int,
    ) -> Floats:
        end = float(start.max()) + transfer * float(np.exp(self.random.normal(0, 0.03)))
        group = tuple(members.tolist())
        for rank, begun in zip(group, start.tolist(), strict=True):
            self._note(name, function, group, rank, -1, begun, end, size)
        return np.full(len(members), end)

    def _reduce_norm(self) -> None:
        members = np.arange(self.scenario.ranks)
        self.free = self._collective("world", "AllReduce", members, self.free, _LOSS_S, 4)

    def _note(  # noqa: PLR0917
        self,
        name: str,
        function: str,
        members: tuple[int, ...],
        rank: int,
        peer: int,
        start: float,
        end: float,
        size: int,
    ) -> None:
        key = (name, f"{function}{peer}", rank)
        sequence = self.sequences.get(key, 0)
        self.sequences[key] = sequence + 1
        jitter = abs(self.random.normal(0, 2e-6))
        self.trace.operations[rank].append(
            Executed(name, function, members, peer, sequence, start, end + jitter, size)
        )

    def _transfer_s(self, strength: float, *, first: bool) -> float:
        slower = 1 + strength if self.scenario.fault is Fault.SLOW_LINK and first else 1.0
        return self.scenario.step_s * self.scenario.transfer_ratio * slower

    def _bytes(self) -> int:
        """Of a bucket: what 200 GB/s carry in its transfer."""
        return int(self.scenario.step_s * self.scenario.transfer_ratio / self.scenario.buckets * 200e9) & ~3

    def _hang(self) -> Trace:
        self.trace.hung_at_s, self.trace.culprit = float(self.free.max()), self.scenario.rank
        return self.trace


def _one_forward_one_backward(stage: int, stages: int, batches: int) -> list[tuple[str, int]]:
    """The order of a stage's work (Narayanan et al. 2021)."""
    warm_up = min(stages - stage - 1, batches)
    plan = [("F", batch) for batch in range(warm_up)]
    for batch in range(batches - warm_up):
        plan += [("F", warm_up + batch), ("B", batch)]
    return plan + [("B", batch) for batch in range(batches - warm_up, batches)]
