"""Samples of the GPUs that serve a job, side by side, whichever nodes they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.jobs import JobState
from perfd.aggregator.state.fleet import Fleet
from perfd.aggregator.state.gpu_owners import gpu_owners
from perfd.aggregator.state.node_state import NodeState
from perfd.analysis.data.job_data import Floats, GpuKey, GpuTable, StepTable
from perfd.analysis.data.robust_stats import mean
from perfd.model import GpuColumn

_NO_STEPS_WINDOW_S = 60.0
"""Of GPU samples, for a job without steps. Chosen."""
_LONGEST_WINDOW_S = 120.0
"""Of GPU samples: steps may be long, and a live number is about now."""
_SHORTEST_SLOT_S = 0.1
"""Of GPU samples side by side: collectors sample no more often."""
_FEWEST_SLOTS = 60
"""Of a window, however many GPUs a job has: the memory of the others is bounded by `_MOST_CELLS`."""
_MOST_CELLS = 32_000_000
"""Of the aligned samples of a large job: beyond this, slots become longer than the interval."""
_NEWEST_S = 10.0
"""Of GPU samples that show whether a job works now. Chosen."""
_ACTIVE = 0.01
"""Of the tensor cores: GPUs that wait in NCCL show 0. Chosen."""
_KEPT_KEYS = 131_072
"""Of GPUs, which are the same in each round: those of 16,384 nodes, some 30 MB."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of one node's GPUs that serve the job, which may be those of its history itself."""

    keys: tuple[GpuKey, ...]
    metrics: tuple[str, ...]
    times_unix_s: Floats
    data: NDArray[np.float32]
    interval_s: float


def gpu_table(
    fleet: Fleet,
    job: JobState,
    nodes: Sequence[NodeState],
    window: StepTable | None,
    since_unix_s: float | None,
) -> GpuTable:
    """The samples of a job's GPUs: all, those of the newest steps, or those since a time."""
    parts = list(_parts(fleet, job, nodes, window, since_unix_s))
    if len(parts) == 1:
        part = parts[0]
        return _table(part.times_unix_s, part.keys, part.metrics, part.data.copy())
    return _aligned(parts, fleet.limits.gpu_history_s)


def _parts(
    fleet: Fleet,
    job: JobState,
    nodes: Sequence[NodeState],
    window: StepTable | None,
    since_unix_s: float | None,
) -> Iterator[_Part]:
    for node in nodes:
        if not node.readings.gpu_tables:
            continue
        history = node.readings.gpu_history
        serving = {
            gpu: owners[job.name]
            for gpu, owners in gpu_owners(node, fleet.jobs).items()
            if job.name in owners
        }
        chosen = [index for index, gpu in enumerate(history.layout.entities.known) if gpu in serving]
        if not chosen:
            continue
        start_unix_s = (
            _window_start(window, history.newest_unix_s()) if since_unix_s is None else since_unix_s
        )
        times, data = history.window(start_unix_s)
        if job.ended_unix_s is not None:
            kept = times <= job.ended_unix_s
            times, data = times[kept], data[kept]
        gpus = [history.layout.entities.known[index] for index in chosen]
        yield _Part(
            keys=tuple([_gpu_key(node.name, gpu, serving[gpu]) for gpu in gpus]),
            metrics=history.metrics,
            times_unix_s=times,
            data=data if len(chosen) == data.shape[1] else data[:, chosen],
            interval_s=history.interval_s(),
        )


@lru_cache(maxsize=_KEPT_KEYS)
def _gpu_key(node: str, gpu: str, rank: int | None) -> GpuKey:
    return GpuKey(node=node, gpu=gpu, rank=rank)


def _window_start(window: StepTable | None, newest_unix_s: float) -> float:
    if window is None:
        return -np.inf
    if not len(window):
        return newest_unix_s - _NO_STEPS_WINDOW_S
    took_s = float(window.step_time_s[0]) * float(window.steps_covered[0])
    first_unix_s = float(window.time_unix_s[0] - (took_s if np.isfinite(took_s) else 0.0))
    return max(first_unix_s, newest_unix_s - _LONGEST_WINDOW_S)


def _aligned(parts: Sequence[_Part], span_s: float) -> GpuTable:
    """Samples of several nodes in common slots of time, as wide as the slowest node's interval.

    A node whose clock is far from most nodes' clocks has no samples in the slots.
    """
    sampled = [part for part in parts if len(part.times_unix_s)]
    keys = tuple([key for part in parts for key in part.keys])
    kinds = dict.fromkeys(part.metrics for part in parts)
    metrics = tuple(dict.fromkeys(name for kind in kinds for name in kind))
    if not sampled:
        return _table(np.zeros(0), keys, metrics, np.full((0, len(keys), len(metrics)), np.nan, np.float32))
    slot_s = max(_SHORTEST_SLOT_S, *(part.interval_s for part in parts))
    most = max(_FEWEST_SLOTS, _MOST_CELLS // (len(keys) * len(metrics)))
    slots = _Slots.of(sampled, span_s, slot_s=slot_s, most=most)
    data = np.empty((slots.count, len(keys), len(metrics)), np.float32)
    column = 0
    for part in parts:
        width = len(part.keys)
        _fill(data[:, column : column + width], part, slots.places(part.times_unix_s), metrics)
        column += width
    return _table(slots.times_unix_s(), keys, metrics, data)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Slots of time of equal length."""

    start_unix_s: float
    length_s: float
    count: int

    @classmethod
    def of(cls, parts: Sequence[_Part], span_s: float, *, slot_s: float, most: int) -> _Slots:
        """Those of the last `span_s` of most nodes, of at least `slot_s` each, and at most about `most`."""
        newest = np.sort([part.times_unix_s[-1] for part in parts])
        # Of an even number the lower one, so that some node is near the middle.
        middle = float(newest[(len(newest) - 1) // 2])
        near = [part.times_unix_s for part in parts if abs(part.times_unix_s[-1] - middle) <= span_s]
        start = max(middle - span_s, min(float(times[0]) for times in near))
        length_s = float(max(times[-1] for times in near)) - start
        slot_s = max(slot_s, length_s / most)
        return cls(start, slot_s, int(length_s / slot_s) + 1)

    def places(self, times_unix_s: Floats) -> NDArray[np.int64]:
        """In which slot each time is; those outside are below 0, or not below the count."""
        return np.floor((times_unix_s - self.start_unix_s) / self.length_s).astype(np.int64)

    def times_unix_s(self) -> Floats:
        """When each begins."""
        return np.asarray(self.start_unix_s + self.length_s * np.arange(self.count), np.float64)


def _fill(block: NDArray[np.float32], part: _Part, slot: NDArray[np.int64], metrics: tuple[str, ...]) -> None:
    """Put a node's samples into their slots of a block (slots, GPUs, metrics); all else there becomes NaN."""
    inside = (slot >= 0) & (slot < len(block))
    in_turn = len(slot) > 0 and inside.all() and bool((slot[1:] - slot[:-1] == 1).all())
    if part.metrics == metrics and in_turn:
        # The usual case: each slot has an instant, but for some at the beginning or end.
        first, end = slot[0], slot[0] + len(slot)
        block[:first], block[end:] = np.nan, np.nan
        block[first:end] = part.data
        return
    block[:] = np.nan
    if part.metrics == metrics:
        block[slot[inside]] = part.data[inside]
    else:
        gpus, place = np.arange(len(part.keys)), [metrics.index(name) for name in part.metrics]
        block[slot[inside][:, None, None], gpus[None, :, None], place] = part.data[inside]


def _table(
    times: Floats, keys: tuple[GpuKey, ...], metrics: tuple[str, ...], data: NDArray[np.float32]
) -> GpuTable:
    return GpuTable(
        time_unix_s=times,
        gpus=keys,
        metrics={GpuColumn(name): data[:, :, index] for index, name in enumerate(metrics)},
    )


def all_compute(fleet: Fleet, job: JobState, now_s: float) -> bool:
    """Whether the tensor cores of all GPUs of a job that are read have been active in the newest samples."""
    nodes = [fleet.nodes[name] for name in job.nodes if name in fleet.nodes]
    if any(now_s - node.received_s > _NEWEST_S for node in nodes):
        return False
    active = []
    for node in nodes:
        since_unix_s = node.readings.gpu_history.newest_unix_s() - _NEWEST_S
        for part in _parts(fleet, job, [node], None, since_unix_s):
            if GpuColumn.TENSOR_ACTIVE not in part.metrics or not len(part.times_unix_s):
                return False
            active.append(mean(part.data[:, :, part.metrics.index(GpuColumn.TENSOR_ACTIVE)], axis=0).min())
    return bool(active) and min(active) >= _ACTIVE
