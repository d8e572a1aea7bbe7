"""Kinds of jobs and faults that no recording has, and that nothing was tuned to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.faults.layouts import Effect
from perfd.analysis.data.job_data import Floats

_ONSET_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The job ends, and starts again from its newest step with other sizes."""

    ends_s: float
    begins_s: float
    effect: Callable[[int, float], Effect]
    """From then on, of the step's number and the seconds since that start."""
    shape: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One job: what each step has, and who is to blame when."""

    effect: Callable[[int, float], Effect]
    """Of the step's number and the seconds since the job's start."""
    ranks: frozenset[int] = frozenset()
    until_s: float = np.inf
    """Until when they may be blamed; a fault is in the steps that are judged for some time after its end."""
    onset_s: float = _ONSET_S
    log_until_s: float = np.inf
    agent_from_s: Mapping[str, float] = field(default_factory=dict)
    """By node, from when on its agent sends anything."""
    restart: Restart | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)


def _of(ranks: Sequence[int], value: float, count: int = 8) -> Floats:
    return np.where(np.isin(np.arange(count), ranks), value, 0.0)


def _slow(*ranks: int, by: float, count: int = 8) -> Callable[[int, float], Effect]:
    return lambda _, now_s: Effect(_of(ranks, by, count) if now_s > _ONSET_S else 0.0)


def _uneven(number: int, least: float, most: float, count: int = 8) -> Floats:
    return np.random.default_rng(number).uniform(least, most, count)


def _once(at_s: float, length_s: float, ranks: Sequence[int]) -> Callable[[int, float], Effect]:
    """In the first step after that time, ranks stand still for so long."""
    begun: list[int] = []

    def effect(step: int, now_s: float) -> Effect:
        if step == 0:
            begun.clear()
        if now_s > at_s and not begun:
            begun.append(step)
        return Effect(stall_s=_of(ranks, length_s) if begun == [step] else 0.0)

    return effect


_INTERLEAVED = {"data": 2, "stages": 4, "chunks": 2, "step_s": 0.8, "length_s": 90.0}
_RING = {"data": 4, "context": 4, "step_s": 0.6, "micro_batches": 2}
_RANKS_64 = {"tensor": 4, "data": 4, "stages": 4, "step_s": 1.0, "length_s": 90.0}
_RANKS_256 = {"tensor": 8, "data": 8, "stages": 4, "step_s": 2.0, "length_s": 120.0}
_EXPERTS = {"data": 16, "experts": 16, "step_s": 0.5, "micro_batches": 2}
_HYBRID = {"data": 16, "sharded_in_nodes": True, "step_s": 0.5, "buckets": 8}
_BATCHES = {"data": 8, "experts": 2, "micro_batches": 4, "step_s": 0.25}

KINDS: Mapping[str, FaultKind] = {
    "healthy": FaultKind(effect=lambda *_: Effect()),
    "loaders of all stop for 1.5 s every 50 steps": FaultKind(
        effect=lambda step, now_s: Effect(stall_s=1.5 if now_s > _ONSET_S and step % 50 == 0 else 0.0),
        shape={"length_s": 110.0},
    ),
    "loaders of all slow by 40%, unevenly": FaultKind(
        effect=lambda step, now_s: Effect(stall_s=_uneven(step, 0.06, 0.14) if now_s > _ONSET_S else 0.0)
    ),
    "rank 3 slow by 12%, rank 5 by 6%": FaultKind(
        effect=lambda _, now_s: Effect(_of([3], 0.12) + _of([5], 0.06) if now_s > _ONSET_S else 0.0),
        ranks=frozenset({3}),
    ),
    "ranks 2 and 5 slow by 20%": FaultKind(effect=_slow(2, 5, by=0.2), ranks=frozenset({2, 5})),
    "pipelines: ranks 1 and 6 slow by 25%": FaultKind(
        effect=_slow(1, 6, by=0.25),
        ranks=frozenset({1, 6}),
        shape={"data": 4, "stages": 2, "step_s": 0.5, "length_s": 90.0},
    ),
    "pipelines: rank 5 of four stages slow by 30%": FaultKind(
        effect=_slow(5, by=0.3),
        ranks=frozenset({5}),
        shape={"data": 2, "stages": 4, "step_s": 0.8, "length_s": 90.0},
    ),
    "steps grow by 10% a minute": FaultKind(
        effect=lambda _, now_s: Effect(0.1 * now_s / 60), shape={"length_s": 180.0}
    ),
    "power cap: rank 6 slow by 15% from the start": FaultKind(
        effect=lambda *_: Effect(_of([6], 0.15)), ranks=frozenset({6}), onset_s=0.0
    ),
    "heat: rank 4 slow by 25% for 20 s": FaultKind(
        effect=lambda _, now_s: Effect(_of([4], 0.25) if _ONSET_S < now_s < 2 * _ONSET_S else 0.0),
        ranks=frozenset({4}),
        until_s=52.0,
    ),
    "rack: all slow by 30% for 20 s": FaultKind(
        effect=lambda _, now_s: Effect(0.3 if _ONSET_S < now_s < 2 * _ONSET_S else 0.0)
    ),
    "generates texts for 6 s every 20 steps, hosts busy": FaultKind(
        effect=lambda step, _: Effect(stall_s=6.0 if step and step % 20 == 0 else 0.0),
        shape={"length_s": 120.0},
    ),
    "generates texts of random length every 20 steps": FaultKind(
        effect=lambda step, _: Effect(work_s=_uneven(step, 4, 6) if step and step % 20 == 0 else 0.0),
        shape={"length_s": 120.0},
    ),
    "each step another rank slow by 30%": FaultKind(
        effect=lambda step, now_s: Effect(
            _of([int(_uneven(step, 0, 8)[0])], 0.3) if now_s > _ONSET_S else 0.0
        )
    ),
    "rank 0 evaluates alone for 2 s every 40 steps": FaultKind(
        effect=lambda step, _: Effect(work_s=_of([0], 2.0) if step and step % 40 == 0 else 0.0),
        ranks=frozenset({0}),
        onset_s=0.0,
        shape={"length_s": 120.0},
    ),
    "rank 7 late in one of three steps": FaultKind(
        effect=lambda step, now_s: Effect(
            stall_s=_of([7], 0.1) if now_s > _ONSET_S and step % 3 == 0 else 0.0
        ),
        ranks=frozenset({7}),
    ),
    "one of two nodes slow by 12%": FaultKind(
        effect=_slow(*range(8, 16), by=0.12, count=16),
        ranks=frozenset(range(8, 16)),
        shape={"data": 16, "length_s": 70.0},
    ),
    "the log stops at 30 s, rank 2 slow by 25% from then on": FaultKind(
        effect=lambda _, now_s: Effect(_of([2], 0.25) if now_s > 30 else 0.0),
        ranks=frozenset({2}),
        log_until_s=30.0,
    ),
    "two ranks, one slow by 12%": FaultKind(
        effect=_slow(1, by=0.12, count=2), ranks=frozenset({1}), shape={"data": 2}
    ),
    "rank 9 of 16 slow by 12%": FaultKind(
        effect=_slow(9, by=0.12, count=16), ranks=frozenset({9}), shape={"data": 16}
    ),
    "node 1 of two slow by 12% from the first step": FaultKind(
        effect=lambda *_: Effect(_of(range(8, 16), 0.12, 16)),
        ranks=frozenset(range(8, 16)),
        onset_s=0.0,
        shape={"data": 16},
    ),
    "interleaved stages, healthy": FaultKind(effect=lambda *_: Effect(), shape=_INTERLEAVED),
    "interleaved stages: rank 5 slow by 30%": FaultKind(
        effect=_slow(5, by=0.3), ranks=frozenset({5}), shape=_INTERLEAVED
    ),
    "context ring over two nodes, healthy": FaultKind(effect=lambda *_: Effect(), shape=_RING),
    "context ring: sends of rank 2 to rank 3 take 20 times as long": FaultKind(
        effect=lambda _, now_s: Effect(slow_pair=(2, 3) if now_s > _ONSET_S else None), shape=_RING
    ),
    "context ring: rank 6 slow by 20%": FaultKind(
        effect=_slow(6, by=0.2, count=16), ranks=frozenset({6}), shape=_RING
    ),
    "64 ranks, tp 4, pp 4, dp 4: healthy": FaultKind(effect=lambda *_: Effect(), shape=_RANKS_64),
    "64 ranks: GPU 21 slow by 30%": FaultKind(
        effect=_slow(21, by=0.3, count=64), ranks=frozenset({21}), shape=_RANKS_64
    ),
    "64 ranks: node 2 slow by 25%": FaultKind(
        effect=_slow(*range(16, 24), by=0.25, count=64), ranks=frozenset(range(16, 24)), shape=_RANKS_64
    ),
    "64 ranks: what leaves node 3 takes 5 times as long": FaultKind(
        effect=lambda _, now_s: Effect(slow_node=3 if now_s > _ONSET_S else None), shape=_RANKS_64
    ),
    "256 ranks, tp 8, pp 4, dp 8: GPU 77 slow by 30%": FaultKind(
        effect=_slow(77, by=0.3, count=256), ranks=frozenset({77}), shape=_RANKS_256
    ),
    "256 ranks: node 9 slow by 25%": FaultKind(
        effect=_slow(*range(72, 80), by=0.25, count=256), ranks=frozenset(range(72, 80)), shape=_RANKS_256
    ),
    "experts over two nodes, healthy": FaultKind(effect=lambda *_: Effect(), shape=_EXPERTS),
    "experts over two nodes: rank 4 slow by 20%": FaultKind(
        effect=_slow(4, by=0.2, count=16), ranks=frozenset({4}), shape=_EXPERTS
    ),
    "hybrid sharding over two nodes, healthy": FaultKind(effect=lambda *_: Effect(), shape=_HYBRID),
    "hybrid sharding: rank 11 slow by 20%": FaultKind(
        effect=_slow(11, by=0.2, count=16), ranks=frozenset({11}), shape=_HYBRID
    ),
    "hybrid sharding: node 1 slow by 15%": FaultKind(
        effect=_slow(*range(8, 16), by=0.15, count=16), ranks=frozenset(range(8, 16)), shape=_HYBRID
    ),
    "started again with 12 of 16 ranks, rank 9 slow by 25% from 20 s after": FaultKind(
        effect=lambda *_: Effect(),
        ranks=frozenset({9}),
        onset_s=75.0,
        shape={"data": 16, "length_s": 40.0},
        restart=Restart(
            ends_s=30.0,
            begins_s=55.0,
            effect=_slow(9, by=0.25, count=12),
            shape={"data": 12, "length_s": 60.0},
        ),
    ),
    "one agent of two is missing, rank 3 slow by 25%": FaultKind(
        effect=_slow(3, by=0.25, count=16),
        ranks=frozenset({3}),
        agent_from_s={"node1": np.inf},
        shape={"data": 16, "length_s": 60.0},
    ),
    "one agent of two is missing, rank 11 of its node slow by 25%": FaultKind(
        effect=_slow(11, by=0.25, count=16),
        ranks=frozenset({11}),
        agent_from_s={"node1": np.inf},
        shape={"data": 16, "length_s": 60.0},
    ),
    "one agent of two begins after a quarter of an hour, healthy": FaultKind(
        effect=lambda *_: Effect(),
        agent_from_s={"node1": 900.0},
        shape={"data": 16, "step_s": 2.5, "buckets": 6, "length_s": 960.0},
    ),
    "the clock of one node is off by five minutes, rank 12 slow by 25%": FaultKind(
        effect=_slow(12, by=0.25, count=16),
        ranks=frozenset({12}),
        shape={"data": 16, "clocks_off_s": (0.0, 300.0)},
    ),
    "the clock of the first node is off by -4 minutes, healthy": FaultKind(
        effect=lambda *_: Effect(), shape={"data": 16, "clocks_off_s": (-240.0, 0.0)}
    ),
    "loaders of all slow by 30%, and rank 5 throttled by 25%": FaultKind(
        effect=lambda step, now_s: (
            Effect(_of([5], 0.25), _uneven(step, 0.06, 0.09)) if now_s > _ONSET_S else Effect()
        ),
        ranks=frozenset({5}),
    ),
    "loader of rank 2 slow by 25% from the first step": FaultKind(
        effect=lambda *_: Effect(stall_s=_of([2], 0.0625)), ranks=frozenset({2}), onset_s=0.0
    ),
    "rank 3 slow by 25% in the last 15 s": FaultKind(
        effect=lambda _, now_s: Effect(_of([3], 0.25) if now_s > 105 else 0.0),
        ranks=frozenset({3}),
        onset_s=105.0,
        shape={"length_s": 120.0},
    ),
    "gradients of twice as many micro-batches from 30 s on": FaultKind(
        effect=lambda _, now_s: Effect(micro_batches=8 if now_s > 30 else None), shape=_BATCHES
    ),
    "the batch grows every 20 steps": FaultKind(
        effect=lambda step, _: Effect(micro_batches=min(4 + step // 20, 16)),
        shape=_BATCHES | {"length_s": 120.0},
    ),
    "pipelines: the batch grows every 20 steps": FaultKind(
        effect=lambda step, _: Effect(micro_batches=min(4 + 4 * (step // 20), 16)),
        shape={**_INTERLEAVED, "chunks": 1, "micro_batches": 4, "step_s": 0.3, "length_s": 120.0},
    ),
    "all ranks stopped for 20 s at 40 s": FaultKind(
        effect=_once(40.0, 20.0, range(8)), shape={"length_s": 100.0}
    ),
    "rank 6 alone stopped for 20 s at 40 s": FaultKind(
        effect=_once(40.0, 20.0, [6]),
        ranks=frozenset({6}),
        onset_s=40.0,
        until_s=80.0,
        shape={"length_s": 110.0},
    ),
    "a checkpoint of 30 s every 2 minutes": FaultKind(
        effect=lambda step, _: Effect(
            stall_s=_uneven(step, 30, 31) + _of([0], 1.5) if step and step % 120 == 0 else 0.0
        ),
        shape={"step_s": 1.0, "buckets": 8, "length_s": 420.0},
    ),
}
