"""Simulated jobs in more dimensions: tensor, context, expert parallel, interleaved stages, sharding by node.

Ranks are in Megatron's order: tensor parallel fastest, then context, data and pipeline stages. Tensor,
context and expert groups wait for their results; gradients are reduced at the end of a step. `Effect` says
what is wrong in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.faults.edge import GPUS_PER_NODE
from benchmarks.faults.scenario import Scenario
from benchmarks.faults.simulation import Job
from perfd.analysis.data.job_data import Floats, Ints

_LAYERS = 2
"""Of a stage's chunk, as far as its collectives count."""
_FORWARD, _OPTIMIZER = 0.31, 0.05
_INSIDE_S, _BETWEEN_S = 0.0004, 0.001
"""A transfer of activations inside of a node, and between nodes."""
_ACTIVATION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step has that a healthy one has not; by rank, or the same for all."""

    longer: Floats | float = 0.0
    """All compute, as a share of it."""
    stall_s: Floats | float = 0.0
    """Before the step, with an idle GPU."""
    work_s: Floats | float = 0.0
    """Before the step, on the GPU."""
    slow_node: int | None = None
    """A node whose network takes five times as long for whatever leaves it."""
    slow_pair: tuple[int, int] | None = None
    """Two ranks whose sends to each other take twenty times as long."""
    micro_batches: int | None = None
    """Other than usual: the step is longer by as much, too."""


class Simulated(Job):
    """A data-parallel job or pipelines, with what is wrong in each step."""

    def __init__(self, scenario: Scenario, effect: Callable[[int, float], Effect]) -> None:
        super().__init__(scenario)
        self._effect = effect
        self.now = Effect()

    def _pace(self, number: int, strength: float) -> Floats:
        self.now = self._effect(number, float(self.free.min()))
        usual = super()._pace(number, strength)
        return np.asarray(usual * (1 + self.now.longer) * self.micro_batches / self.scenario.micro_batches)

    def _before(self, number: int, strength: float) -> tuple[Floats, Floats]:
        stall_s, work_s = super()._before(number, strength)
        return stall_s + self.now.stall_s, work_s + self.now.work_s

    @property
    def micro_batches(self) -> int:
        """Of this step."""
        return self.now.micro_batches or self.scenario.micro_batches


class LayoutJob(Simulated):
    """A job whose ranks are laid out in several dimensions."""

    def __init__(self, scenario: Scenario, effect: Callable[[int, float], Effect]) -> None:
        super().__init__(scenario, effect)
        shape = (scenario.stages, scenario.data, scenario.context, scenario.tensor)
        grid = np.arange(scenario.ranks).reshape(shape)
        self._tensor: Ints = grid.reshape(-1, scenario.tensor)
        self._context: Ints = np.moveaxis(grid, 2, -1).reshape(-1, scenario.context)
        self._replicas: Ints = grid.transpose(0, 3, 1, 2).reshape(-1, scenario.data * scenario.context)
        by_data = np.moveaxis(grid, 1, -1).reshape(-1, scenario.data)
        self._experts: Ints = by_data.reshape(-1, scenario.experts)
        self._per_stage = scenario.ranks // scenario.stages

    def _data_parallel(self, busy: Floats, strength: float) -> Floats:  # noqa: ARG002
        if self.scenario.sharded_in_nodes:
            return self._sharded(busy)
        return self._pipeline(busy)

    def _pipeline(self, busy: Floats) -> Floats:
        """1F1B, interleaved where a stage has several chunks; each rank's compute is returned."""
        scenario = self.scenario
        stages, chunks, batches = scenario.stages, scenario.chunks, self.micro_batches
        share = busy / (batches * chunks * _LAYERS)
        done: dict[tuple[str, int, int], Floats] = {}
        plans = [_plan(stage, stages, chunks, batches) for stage in range(stages)]
        while any(plans):
            for stage, plan in enumerate(plans):
                while plan and self._work(stage, *plan[0], share, done):
                    plan.pop(0)
        transfer = self._transfer_s(0.0, first=True)
        if len(self._replicas[0]) > 1:
            self._grouped("dp", "AllReduce", self._replicas, transfer, self._bytes())
        return busy * (1 - _OPTIMIZER)

    def _work(  # noqa: PLR0917
        self, stage: int, kind: str, place: int, batch: int, share: Floats, done: dict[Any, Floats]
    ) -> bool:
        """One chunk (`place` counts over all stages) of one micro-batch; False if its input is missing."""
        scenario = self.scenario
        own = slice(stage * self._per_stage, (stage + 1) * self._per_stage)
        source = place - 1 if kind == "F" else place + 1
        if 0 <= source < scenario.stages * scenario.chunks:
            sent = done.get((kind, source, batch))
            if sent is None:
                return False
            if scenario.stages > 1:
                self._passed(source % scenario.stages, stage, sent)
        part = _FORWARD if kind == "F" else 1 - _FORWARD - _OPTIMIZER
        for _ in range(_LAYERS):
            self.free[own] += part * share[own]
            self._within_layer(own)
        done[kind, place, batch] = self.free[own].copy()
        return True

    def _within_layer(self, own: slice) -> None:
        """What ranks of a stage wait for after a layer."""
        scenario = self.scenario
        if scenario.context > 1:
            for _ in range(scenario.context - 1):
                self._ring(self._of(self._context, own))
        if scenario.tensor > 1:
            groups = self._of(self._tensor, own)
            self._grouped("tp", "AllReduce", groups, _INSIDE_S, _ACTIVATION_BYTES)
        if scenario.experts > 1:
            for _ in range(2):
                groups = self._of(self._experts, own)
                self._grouped("ep", "AlltoAll", groups, _BETWEEN_S, _ACTIVATION_BYTES)

    def _sharded(self, busy: Floats) -> Floats:
        """Parameters sharded over each node and replicated over nodes, as FSDP's hybrid sharding does."""
        scenario = self.scenario
        shards = np.arange(scenario.ranks).reshape(-1, GPUS_PER_NODE)
        layers = scenario.buckets
        transfer = self._transfer_s(0.0, first=True) / (3 * layers)
        for part in (_FORWARD, 1 - _FORWARD - _OPTIMIZER):
            for _ in range(layers):
                self._grouped("shard", "AllGather", shards, transfer, self._bytes() // GPUS_PER_NODE)
                self.free += part * busy / layers
                if part != _FORWARD:
                    self._grouped("shard", "ReduceScatter", shards, transfer, self._bytes() // GPUS_PER_NODE)
                    self._grouped("replicas", "AllReduce", shards.T, transfer, self._bytes() // GPUS_PER_NODE)
        return busy * (1 - _OPTIMIZER)

    @staticmethod
    def _of(groups: Ints, own: slice) -> Ints:
        return groups[(groups[:, 0] >= own.start) & (groups[:, 0] < own.stop)]

    def _grouped(self, name: str, function: str, groups: Ints, transfer_s: float, size: int) -> None:
        """One collective in each of these groups, whose ranks wait for it."""
        starts = self.free[groups]
        nodes = groups // GPUS_PER_NODE
        leaves = (nodes != nodes[:, :1]).any(axis=1) & (nodes == self.now.slow_node).any(axis=1)
        noise = np.exp(self.random.normal(0, 0.03, len(groups)))
        ends = starts.max(axis=1) + transfer_s * noise * np.where(leaves, 5.0, 1.0)
        for group, begun, end in zip(groups.tolist(), starts.tolist(), ends.tolist(), strict=True):
            members = tuple(group)
            for rank, start in zip(members, begun, strict=True):
                self._note(f"{name}{members[0]}", function, members, rank, -1, start, end, size)
        self.free[groups] = ends[:, None]

    def _ring(self, groups: Ints) -> None:
        """Each rank sends to the next one of its group, and goes on when it has what the one before sent."""
        starts = self.free[groups]
        before, count = np.roll(starts, 1, axis=1), groups.shape[1]
        took_s = np.full(groups.shape, _BETWEEN_S)
        if self.now.slow_pair is not None:
            pair = (np.roll(groups, 1, axis=1) == self.now.slow_pair[0]) & (groups == self.now.slow_pair[1])
            took_s[pair] *= 20
        ends = np.maximum(starts, before) + took_s
        for members, begun, received in zip(groups.tolist(), starts, ends, strict=True):
            for place, rank in enumerate(members):
                after = (place + 1) % count
                for function, peer, end in (
                    ("Send", after, received[after]),
                    ("Recv", (place - 1) % count, received[place]),
                ):
                    self._note(
                        f"cp{members[0]}",
                        function,
                        tuple(members),
                        rank,
                        peer,
                        float(begun[place]),
                        float(end),
                        _ACTIVATION_BYTES,
                    )
        self.free[groups] = np.maximum(ends, np.roll(ends, -1, axis=1))

    def _passed(self, source: int, stage: int, sent: Floats) -> None:
        """A stage waits for what another one sent, rank by rank."""
        count, stages = self._per_stage, self.scenario.stages
        free = self.free[stage * count : (stage + 1) * count]
        end = np.maximum(sent, free) + _BETWEEN_S
        for place in range(count):
            line = tuple(range(place, stages * count, count))
            times = ((source, "Send", stage, sent[place]), (stage, "Recv", source, free[place]))
            for own, function, peer, start in times:
                rank = own * count + place
                self._note(
                    f"pp{place}",
                    function,
                    line,
                    rank,
                    peer,
                    float(start),
                    float(end[place]),
                    _ACTIVATION_BYTES,
                )
        self.free[stage * count : (stage + 1) * count] = end


def _plan(stage: int, stages: int, chunks: int, batches: int) -> list[tuple[str, int, int]]:
    """A stage's work in order: direction, chunk counted over all stages, micro-batch (Narayanan et al.)."""
    total = batches * chunks
    warm_up = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    warm_up = min(warm_up, total)

    def work(kind: str, number: int) -> tuple[str, int, int]:
        chunk = number % (stages * chunks) // stages
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        batch = number // (stages * chunks) * stages + number % stages
        return kind, chunk * stages + stage, batch

    plan = [work("F", number) for number in range(warm_up)]
    for number in range(total - warm_up):
        plan += [work("F", warm_up + number), work("B", number)]
    return plan + [work("B", number) for number in range(total - warm_up, total)]
