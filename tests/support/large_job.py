"""A job of thousands of ranks in a real aggregator, without the agents that would have to report it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.jobs import RecordSource
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, RulesConfig
from perfd.model import (
    GpuColumn,
    JobDescription,
    ParallelLayout,
    PhaseTime,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    StepPhases,
    TrainingStep,
)

PER_NODE = 8
STAGES = 8
STEP_S = 1.0
START_S = 1_700_000_000.0
SAMPLED_STEPS = 30
"""GPUs are sampled once in each of the newest steps."""
_USUAL = {
    GpuColumn.SM_ACTIVE: 0.72,
    GpuColumn.TENSOR_ACTIVE: 0.31,
    GpuColumn.DRAM_ACTIVE: 0.4,
    GpuColumn.POWER: 570.0,
    GpuColumn.TEMPERATURE: 62.0,
    GpuColumn.SM_CLOCK: 1.755e9,
    GpuColumn.MEMORY_USED: 6.1e10,
    GpuColumn.MEMORY_TOTAL: 8.5e10,
}
_SCATTER = 0.03
"""Standard deviation of what differs from GPU to GPU and from sample to sample."""


class LargeJob:
    """A pipeline-parallel job whose rank `slow` needs more time; `advance` is one more step and a round."""

    def __init__(self, running: Aggregator, clock: VirtualClock, ranks: int, steps: int, slow: int) -> None:
        self.url = f"http://{running.http_address}"
        self.name = "llama-405b"
        self._running = running
        self._clock = clock
        self._random = np.random.default_rng(1)
        self._nodes = ranks // PER_NODE
        self._slow = slow
        self.step = 0
        layout = ParallelLayout(
            world_size=ranks, tp=PER_NODE, cp=1, pp=STAGES, dp=ranks // PER_NODE // STAGES
        )
        first: list[Record] = [
            JobDescription(job=self.name, framework="megatron-lm", parallel=layout, train_steps=2 * steps)
        ]
        first += [line for _ in range(steps - SAMPLED_STEPS) for line in self._line()]
        for node in range(self._nodes):
            places = [
                RankPlacement(job=self.name, rank=node * PER_NODE + gpu, gpu=gpu) for gpu in range(PER_NODE)
            ]
            self._apply(node, places + (first if node == 0 else []))
        for _ in range(SAMPLED_STEPS):
            self._next()
        running.tick()

    def advance(self) -> None:
        """One more step with a sample of each GPU, and a round, which open pages show."""
        self._next()
        self._running.tick()

    def _next(self) -> None:
        lines = self._line()
        self._clock.advance(STEP_S)
        for node in range(self._nodes):
            self._apply(node, [self._samples(node), *(lines if node == 0 else [])])

    def _line(self) -> list[Record]:
        self.step += 1
        step_s = STEP_S * (1 + _SCATTER * self._random.standard_normal())
        forward, backward = 0.3 * step_s, 0.55 * step_s
        return [
            TrainingStep(
                job=self.name,
                step=self.step,
                time_unix_ns=round((START_S + self.step * STEP_S) * 1e9),
                step_time_s=step_s,
                flops_per_s_per_gpu=4e14 / step_s,
                tokens_per_s=4e6 / step_s,
                global_batch_size=2048,
                losses={"lm loss": 2 + 8 / self.step},
            ),
            StepPhases(
                job=self.name,
                step=self.step,
                phases={
                    "forward-compute": PhaseTime(min_s=0.9 * forward, max_s=forward),
                    "backward-compute": PhaseTime(min_s=0.9 * backward, max_s=backward),
                    "optimizer": PhaseTime(min_s=0.02, max_s=0.03),
                },
            ),
        ]

    def _samples(self, node: int) -> SampleTable:
        def column(usual: float) -> list[float]:
            values = usual * (1 + _SCATTER * self._random.standard_normal(PER_NODE))
            if node == self._slow // PER_NODE:
                values[self._slow % PER_NODE] *= 1.3
            return [float(value) for value in values]

        time_ns = round(self._clock.unix_ns())
        return SampleTable(
            scope=Scope.GPU,
            times_unix_ns=[time_ns] * PER_NODE,
            entities=[str(gpu) for gpu in range(PER_NODE)],
            columns={name.value: column(usual) for name, usual in _USUAL.items()},
        )

    def _apply(self, node: int, records: list[Record]) -> None:
        name = f"gpu-{node:04d}"
        source = RecordSource(
            agent_id=name,
            node=name,
            sent_unix_s=self._clock.unix_ns() / 1e9,
            now_s=self._clock.monotonic_s(),
        )
        with self._running.state.lock:
            self._running.state.fleet.apply(records, source)


@contextmanager
def large_job(ranks: int = 16_384, steps: int = 10_000, slow: int = 4321) -> Iterator[LargeJob]:
    """The job in an aggregator of its own, whose page is served; `ranks` is a multiple of 64."""
    clock = VirtualClock(round((START_S + (steps - SAMPLED_STEPS) * STEP_S) * 1e9))
    config = AggregatorConfig(
        listen="127.0.0.1:0", http_listen="127.0.0.1:0", rules=RulesConfig(builtin=False)
    )
    running = Aggregator(config, clock, manual=True)
    running.start()
    try:
        yield LargeJob(running, clock, ranks, steps, slow)
    finally:
        running.stop()
