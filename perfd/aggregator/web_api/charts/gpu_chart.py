"""What a job's GPUs did over the last minutes, in few enough points to draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.state import AggregatorState, gpu_owners
from perfd.aggregator.state.gpu_owners import GpuOwners
from perfd.aggregator.web_api.charts.significant_digits import significant
from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median
from perfd.model import GpuColumn

_CELLS = 4_000_000
"""Of all GPUs and metrics together: a job of 16,384 GPUs gets 30 points."""
_DIGITS = 6
"""A float32 has no more."""
_USED = "memory_used_ratio"
_COLUMNS = (
    GpuColumn.SM_ACTIVE,
    GpuColumn.TENSOR_ACTIVE,
    GpuColumn.DRAM_ACTIVE,
    GpuColumn.POWER,
    GpuColumn.TEMPERATURE,
    GpuColumn.SM_CLOCK,
    GpuColumn.MEMORY_USED,
    GpuColumn.MEMORY_TOTAL,
)

Samples = tuple[Floats, NDArray[np.float32], Sequence[int | None]]
"""Instants, their (t, gpu, metric) values in the order of the columns, and the rank of each GPU."""


def gpu_columns(state: AggregatorState, job: str, points: int, rank: int | None) -> dict[str, Any] | None:
    """The keys of schema perfd.gpu_series/1; None for a job that is not in memory."""
    with state.lock:
        known = state.fleet.jobs.get(job)
        if known is None:
            return None
        nodes, ended_unix_s = sorted(known.nodes), known.ended_unix_s
    parts = [part for name in nodes if (part := _samples(state, job, name, ended_unix_s)) is not None]
    return columns_of(parts, points, rank)


def columns_of(parts: Sequence[Samples], points: int, rank: int | None) -> dict[str, Any]:
    """The samples of nodes in common intervals: of each metric the median, lowest and highest of all GPUs.

    A value of an interval is the mean of a GPU's samples in it, NaN without any. With `rank` also the values
    of its GPU.
    """
    parts = [part for part in parts if len(part[0])]
    ranks = [one for part in parts for one in part[2]]
    empty: dict[str, Any] = {"time_unix_s": [], "gpus": len(ranks), "metrics": {}}
    if not parts:
        return empty
    points = max(2, min(points, _CELLS // (len(ranks) * len(_COLUMNS))))
    first, last = min(part[0][0] for part in parts), max(part[0][-1] for part in parts)
    # At the pace of the samples an interval would sometimes have none.
    longest = max(len(part[0]) for part in parts)
    points = max(1, min(points, longest // 2 or 1))
    width = max((last - first) / points, 1e-9)
    means = np.concatenate([_means(part, first, width, points) for part in parts], axis=1)
    used, total = means[:, :, -2], means[:, :, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = used / total
    drawn = {name.value: means[:, :, i] for i, name in enumerate(_COLUMNS[:-2])} | {_USED: shares}
    one = ranks.index(rank) if rank is not None and rank in ranks else None
    return {
        "time_unix_s": (first + width * np.arange(1, points + 1)).tolist(),
        "gpus": len(ranks),
        "metrics": {
            name: _statistics(values, one) for name, values in drawn.items() if np.isfinite(values).any()
        },
    }


def _statistics(values: Floats, one: int | None) -> dict[str, list[float]]:
    found = {
        "median": median(values),
        "lowest": np.fmin.reduce(values, axis=1),
        "highest": np.fmax.reduce(values, axis=1),
    }
    if one is not None:
        found["rank"] = values[:, one]
    return {name: significant(column.tolist(), _DIGITS) for name, column in found.items()}


def _means(part: Samples, first: float, width: float, points: int) -> Floats:
    """(points, gpus, columns): the mean of what is known in each interval, NaN where nothing is."""
    times, data, _ = part
    place = np.minimum(((times - first) / width).astype(np.int64), points - 1)
    means = np.full((points, *data.shape[1:]), np.nan)
    if not len(times):
        return means
    # Instants are in order, so that those of an interval are neighbors.
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    known = np.isfinite(data)
    sums = np.add.reduceat(np.where(known, data, 0.0), starts, axis=0, dtype=np.float64)
    counts = np.add.reduceat(known, starts, axis=0, dtype=np.int64)
    with np.errstate(invalid="ignore"):
        means[place[starts]] = sums / counts
    return means


def _samples(state: AggregatorState, job: str, name: str, ended_unix_s: float | None) -> Samples | None:
    """A copy of a node's samples of the job's GPUs; None if there are none."""
    with state.lock:
        node = state.fleet.nodes.get(name)
        if node is None:
            return None
        history = node.readings.gpu_history
        owners = gpu_owners(node, state.fleet.jobs)
        chosen = list(_of_job(owners, history.layout.entities.known, job))
        if not chosen:
            return None
        times, data = history.since(-math.inf)
        metrics = history.metrics
    places = [metrics.index(column.value) if column.value in metrics else None for column in _COLUMNS]
    kept = slice(None) if ended_unix_s is None else times <= ended_unix_s
    picked = np.full((len(times), len(chosen), len(_COLUMNS)), np.nan, np.float32)
    indices = [index for index, _ in chosen]
    if indices == list(range(data.shape[1])):
        indices = slice(None)  # type: ignore[assignment]  # All of the node: a view, not a copy.
    for i, place in enumerate(places):
        if place is not None:
            picked[:, :, i] = data[:, indices, place]
    return times[kept], picked[kept], [rank for _, rank in chosen]


def _of_job(owners: GpuOwners, entities: Sequence[str], job: str) -> Iterator[tuple[int, int | None]]:
    for index, gpu in enumerate(entities):
        if job in (of_gpu := owners.get(gpu, {})):
            yield index, of_gpu[job]
