"""One job's state as the arrays that the analysis reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.jobs import JobState
from perfd.aggregator.state.fleet import Fleet
from perfd.aggregator.state.gpu_owners import gpu_owners
from perfd.aggregator.state.node_state import NodeState
from perfd.analysis.data.job_data import Captured, Floats, GpuKey, GpuTable, JobData, StepTable
from perfd.analysis.data.robust_stats import known, mean, median
from perfd.model import GpuColumn, NicColumn, RankPlacement, Scope

_SEVERAL = 2
"""Only a node with so many jobs can have a GPU that jobs share."""
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
_PORT_COLUMNS = (NicColumn.LINK_UP, NicColumn.SPEED)


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of one node's GPUs that serve the job, which may be those of its history itself."""

    keys: tuple[GpuKey, ...]
    metrics: tuple[str, ...]
    times_unix_s: Floats
    data: NDArray[np.float32]
    interval_s: float


def job_data(
    fleet: Fleet,
    job: JobState,
    *,
    now_unix_s: float,
    now_s: float,
    window_steps: int | None = None,
    since_unix_s: float | None = None,
) -> JobData:
    """All that is known of a job, or its newest `window_steps` progress lines and what belongs to them.

    With `since_unix_s` only progress lines and samples from then on; there may be none.
    The arrays are copies: the state may change while they are read.
    """
    every_step = job.step_table()
    steps = _newest(every_step, window_steps, since_unix_s)
    nodes = [fleet.nodes[name] for name in job.nodes if name in fleet.nodes]
    windowed = window_steps is not None or since_unix_s is not None
    first_step = int(steps.step[0]) if windowed and len(steps) else 0
    return JobData(
        name=job.name,
        now_unix_s=now_unix_s,
        description=job.description,
        steps=steps,
        step_source=job.step_source,
        operation_pace=job.operation_pace,
        within_lines=job.operation_steps.within(steps) if job.operation_steps.pace else None,
        phases=job.phases.table(
            first_step=first_step, ranks=min(job.world_size or 0, fleet.limits.ranks_per_job)
        ),
        gpu=_gpu_table(fleet, job, nodes, steps if window_steps is not None else None, since_unix_s),
        gpu_infos={node.name: tuple(node.gpu_infos.values()) for node in nodes if node.gpu_infos},
        ports_bytes_per_s={node.name: total for node in nodes if (total := ports_bytes_per_s(node))},
        placements=_placements(nodes, job.name),
        gpu_sharers=_sharers(fleet, nodes, job.name),
        memory=tuple(job.memory.values()),
        events=tuple(job.events),
        collectives=job.communication.collectives.stacks(),
        nccl=job.communication.nccl.table(),
        host_waits=job.communication.host_waits.table(now_s),
        launches=job.communication.launches.table(now_s),
        progress=job.communication.progress.newest(),
        captured=job.captured and _with_step_time(job.captured, every_step),
        longest_pause_s=_longest_pause_s(every_step.time_unix_s, job.attempts.began_unix_s),
        log_silent_s=job.log_silent_s(now_s),
        started_unix_s=job.attempts.started_unix_s,
        run_began_unix_s=job.attempts.began_unix_s,
        ended_unix_s=job.ended_unix_s,
    )


def _longest_pause_s(times_unix_s: Floats, began_unix_s: float | None) -> float:
    own = times_unix_s if began_unix_s is None else times_unix_s[times_unix_s >= began_unix_s]
    pauses_s = np.diff(own)
    return float(pauses_s.max(initial=0.0, where=np.isfinite(pauses_s)))


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


def _placements(nodes: Sequence[NodeState], job: str) -> dict[str, tuple[RankPlacement, ...]]:
    """By node, where the job's ranks are; without nodes that have none."""
    found = {
        node.name: tuple(one for (name, _), one in node.placements.items() if name == job) for node in nodes
    }
    return {node: placed for node, placed in found.items() if placed}


def _sharers(fleet: Fleet, nodes: Sequence[NodeState], job: str) -> dict[int, tuple[str, ...]]:
    """By rank, the other running jobs on its GPU that make steps."""
    others: dict[int, tuple[str, ...]] = {}
    for node in nodes:
        if len({name for name, _ in node.placements}) < _SEVERAL:
            continue
        for owners in gpu_owners(node, fleet.jobs).values():
            rank = owners.get(job)
            if rank is not None and (beside := _training(fleet, owners.keys() - {job})):
                others[rank] = beside
    return others


def _training(fleet: Fleet, names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in sorted(names) if fleet.jobs[name].step_source is not None)


def _with_step_time(captured: Captured, steps: StepTable) -> Captured:
    """What a capture showed, with how long the log's steps took that overlap it."""
    took_s = np.nan_to_num(steps.step_time_s * steps.steps_covered)
    ended, began = steps.time_unix_s, steps.time_unix_s - took_s
    times_s = steps.step_time_s[(ended > captured.start_unix_s) & (began < captured.end_unix_s)]
    return dataclasses.replace(captured, step_time_s=known(float(median(times_s))))


def _newest(steps: StepTable, window_steps: int | None, since_unix_s: float | None) -> StepTable:
    if since_unix_s is not None:
        steps = _rows(steps, slice(len(steps) - int((steps.time_unix_s >= since_unix_s).sum()), None))
    return steps if window_steps is None else _rows(steps, slice(-window_steps, None))


def _rows(steps: StepTable, rows: slice) -> StepTable:
    return StepTable(**{f.name: getattr(steps, f.name)[rows] for f in dataclasses.fields(StepTable)})


def _gpu_table(
    fleet: Fleet,
    job: JobState,
    nodes: Sequence[NodeState],
    window: StepTable | None,
    since_unix_s: float | None,
) -> GpuTable:
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
        history = node.readings.gpu_history
        if not history.layout.entities.known:
            continue
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
    newest = [part.times_unix_s[-1] for part in parts if len(part.times_unix_s)]
    keys = tuple([key for part in parts for key in part.keys])
    kinds = dict.fromkeys(part.metrics for part in parts)
    metrics = tuple(dict.fromkeys(name for kind in kinds for name in kind))
    if not newest:
        return _table(np.zeros(0), keys, metrics, np.full((0, len(keys), len(metrics)), np.nan, np.float32))
    slot_s = max(_SHORTEST_SLOT_S, *(part.interval_s for part in parts))
    # Of an even number the lower one, so that some node is near the middle.
    middle = float(np.sort(newest)[(len(newest) - 1) // 2])
    near = [
        part for part in parts if len(part.times_unix_s) and abs(part.times_unix_s[-1] - middle) <= span_s
    ]
    start = max(middle - span_s, min(float(part.times_unix_s[0]) for part in near))
    length_s = float(max(part.times_unix_s[-1] for part in near)) - start
    slot_s = max(slot_s, length_s / max(_FEWEST_SLOTS, _MOST_CELLS // (len(keys) * len(metrics))))
    slots = int(length_s / slot_s) + 1
    data = np.full((slots, len(keys), len(metrics)), np.nan, np.float32)
    column = 0
    for part in parts:
        slot = np.floor((part.times_unix_s - start) / slot_s).astype(np.int64)
        inside = (slot >= 0) & (slot < slots)
        width = len(part.keys)
        block = data[:, column : column + width]
        in_turn = len(slot) > 0 and inside.all() and bool((slot[1:] - slot[:-1] == 1).all())
        if part.metrics == metrics and in_turn:
            # The usual case: each slot has an instant.
            block[slot[0] : slot[0] + len(slot)] = part.data
        elif part.metrics == metrics:
            block[slot[inside]] = part.data[inside]
        else:
            place = [metrics.index(name) for name in part.metrics]
            block[slot[inside][:, None, None], np.arange(width)[None, :, None], place] = part.data[inside]
        column += width
    return _table(np.asarray(start + slot_s * np.arange(slots), np.float64), keys, metrics, data)


def _table(
    times: Floats, keys: tuple[GpuKey, ...], metrics: tuple[str, ...], data: NDArray[np.float32]
) -> GpuTable:
    return GpuTable(
        time_unix_s=times,
        gpus=keys,
        metrics={GpuColumn(name): data[:, :, index] for index, name in enumerate(metrics)},
    )


def ports_bytes_per_s(node: NodeState) -> float | None:
    """What all ports that are up send at most together; None when none is known.

    Other interfaces are left out: which of them NCCL would use is unknown.
    """
    readings = node.readings.get(Scope.NIC)
    if readings is None or not {*_PORT_COLUMNS} <= set(readings.layout.metrics.known):
        return None
    ports = [at for at, name in enumerate(readings.layout.entities.known) if "/" in name]
    columns = [readings.layout.metrics.known.index(name) for name in _PORT_COLUMNS]
    up, speed = readings.values[np.ix_(ports, columns)].T
    total = float(speed[(up == 1) & (speed > 0)].sum())
    return total or None
