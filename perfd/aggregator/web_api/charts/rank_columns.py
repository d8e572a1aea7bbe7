"""The ranks of a job as a page shows them: one metric of all ranks, all metrics of the unusual ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.web_api.charts.significant_digits import significant
from perfd.aggregator.web_api.query_numbers import QueryError, whole_number
from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median
from perfd.model import GpuColumn

METRICS = (
    *("slowdown_ratio", GpuColumn.SM_ACTIVE, GpuColumn.TENSOR_ACTIVE, GpuColumn.DRAM_ACTIVE, GpuColumn.POWER),
    *("memory_used_ratio", GpuColumn.TEMPERATURE, GpuColumn.SM_CLOCK, GpuColumn.BUSY),
    *("wait_ratio", "gain_ratio"),
)
_ALL_ROWS = 64
"""Up to this many ranks have a row each; of more, only the most unusual do."""
_UNUSUAL_ROWS = 12
"""Of a job with too many ranks for a row each: as many as are read at a glance. Chosen."""
_QUIET_RATIO = 0.05
"""A rank that is closer to the median than this in all metrics is not unusual."""
_CULPRITS_PER_FINDING = 4
"""Which are among the shown rows, however usual their numbers are."""
_MOST_COLUMNS = 4096
"""Of the heat map: about as many as the widest screens have pixels."""
_DIGITS = 4
"""A page shows three."""
_ZERO_CELSIUS_K = 273.0
"""Deviations of temperatures are ratios of absolute ones."""
_LEAST_SHARE = 0.1
"""Of a deviation from a smaller share: 2% is not far from 1%."""
_LISTS = ("gpus", "slowdowns")


def without_ranks(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job's entry without what it has for each rank, and with the number of its GPUs."""
    kept = {name: value for name, value in job.items() if name not in _LISTS}
    if "nccl" in kept:
        kept["nccl"] = {name: value for name, value in kept["nccl"].items() if name != "ranks"}
    return kept | {"gpu_count": len(job.get("gpus") or ())}


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Rows in the order of ranks, those of GPUs without a rank last."""

    rank: Sequence[int | None]
    node: Sequence[str | None]
    gpu: Sequence[str | None]
    stage: Sequence[int | None]
    values: Floats
    """(rows, metrics), NaN where unknown."""
    median: Floats
    deviation: Floats
    """(rows, metrics), relative to the median, 0 where unknown."""
    culprit: NDArray[np.bool_]
    """Whether the bottleneck names the rank, its GPU or its node."""

    @property
    def known(self) -> list[int]:
        """Metrics of which a value is known."""
        return [int(place) for place in np.flatnonzero(np.isfinite(self.values).any(axis=0))]

    def row(self, index: int) -> dict[str, Any]:
        """All of one rank."""
        known = [place for place in self.known if np.isfinite(self.values[index, place])]
        return {
            "rank": self.rank[index],
            "node": self.node[index],
            "gpu": self.gpu[index],
            "stage": self.stage[index],
            "culprit": bool(self.culprit[index]),
            "values": {METRICS[place]: float(self.values[index, place]) for place in known},
            "deviation": {METRICS[place]: float(self.deviation[index, place]) for place in known},
        }

    def named(self, culprits: Iterable[Mapping[str, Any]]) -> list[int]:
        """Rows of the ranks, GPUs and nodes that a finding names."""
        wanted = {f"{who['kind']} {who['id']}" for who in culprits}
        if not wanted:
            return []
        return [
            index
            for index, (rank, node, gpu) in enumerate(zip(self.rank, self.node, self.gpu, strict=True))
            if f"rank {rank}" in wanted or f"node {node}" in wanted or f"gpu {node}/{gpu}" in wanted
        ]


def rank_columns(job: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """The keys of schema perfd.ranks/1 for an entry of perfd.jobs/2 or perfd.summary/2.

    Raises `QueryError` with a sentence when the query is wrong.
    """
    metric, rank = query.get("metric"), whole_number(query, "rank")
    columns = whole_number(query, "columns", least=1, most=_MOST_COLUMNS)
    if metric not in {None, *METRICS}:
        raise QueryError(f"`metric` must be one of {', '.join(METRICS)}.")
    ranks = _ranks_of(job)
    count, known = len(ranks.rank), ranks.known
    many = count > _ALL_ROWS
    if rank is not None:
        chosen = [ranks.rank.index(rank)] if rank in ranks.rank else []
    else:
        chosen = _unusual(ranks) if many else list(range(count))
    return {
        "count": count,
        "metrics": {
            METRICS[place]: {
                "median": float(ranks.median[place]),
                "lowest": float(np.nanmin(ranks.values[:, place])),
                "highest": float(np.nanmax(ranks.values[:, place])),
            }
            for place in known
        },
        "stages": len({stage for stage in ranks.stage if stage is not None}),
        "rows": [ranks.row(index) for index in chosen],
        "culprits": [] if rank is not None else [ranks.row(index) for index in _culprits(job, ranks)],
        "grid": _grid(ranks, metric, known) if rank is None else None,
        "picture": _picture(ranks, columns, known) if many and columns and rank is None else None,
    }


def _rows_of(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a job's entry has of each rank, together; the ranks in order, then GPUs without a rank."""
    by_rank: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    without_rank: dict[tuple[str, str], Mapping[str, Any]] = {}
    for gpu in job.get("gpus") or ():
        if gpu.get("rank") is not None:
            by_rank[gpu["rank"]] = dict(gpu)
        else:
            without_rank[gpu["node"], gpu["gpu"]] = gpu
    for one in (job.get("nccl") or {}).get("ranks") or ():
        by_rank[one["rank"]].update(one)
    for one in job.get("slowdowns") or ():
        by_rank[one["rank"]].update(rank=one["rank"], slowdown_ratio=one["ratio"])
    return [by_rank[key] for key in sorted(by_rank)] + [without_rank[key] for key in sorted(without_rank)]


def _ranks_of(job: Mapping[str, Any]) -> _Ranks:
    rows = _rows_of(job)
    values = np.array(
        [[row.get(name) for name in METRICS] for row in rows] or np.empty((0, len(METRICS))), dtype=np.float64
    )
    values[~np.isfinite(values)] = np.nan
    # What ranks report may be any number.
    with np.errstate(over="ignore", invalid="ignore"):
        usual = median(values, axis=0)
        deviation = np.nan_to_num(_deviation(values, usual))
    ranks = _Ranks(
        rank=[row.get("rank") for row in rows],
        node=[row.get("node") for row in rows],
        gpu=[row.get("gpu") for row in rows],
        stage=[row.get("stage") for row in rows],
        values=values,
        median=usual,
        deviation=deviation,
        culprit=np.zeros(len(rows), dtype=bool),
    )
    ranks.culprit[ranks.named((job.get("bottleneck") or {}).get("culprits") or ())] = True
    return ranks


def _deviation(values: Floats, usual: Floats) -> Floats:
    """Relative to the median: degrees Celsius have no zero to be a share of, and shares have a floor."""
    scale = np.maximum(np.abs(usual), 1e-9)
    for place, name in enumerate(METRICS):
        if name == GpuColumn.TEMPERATURE:
            scale[place] = usual[place] + _ZERO_CELSIUS_K
        elif name.endswith("_ratio"):
            scale[place] = np.fmax(scale[place], _LEAST_SHARE)
    return np.asarray((values - usual) / scale)


def _unusual(ranks: _Ranks) -> list[int]:
    """Culprits first, then those that are farthest from the median in any metric; at least one."""
    farthest = np.abs(ranks.deviation).max(axis=1)
    order = np.lexsort((-farthest, ~ranks.culprit))[:_UNUSUAL_ROWS]
    return [
        int(index)
        for place, index in enumerate(order)
        if place == 0 or ranks.culprit[index] or farthest[index] > _QUIET_RATIO
    ]


def _culprits(job: Mapping[str, Any], ranks: _Ranks) -> list[int]:
    findings = [job.get("bottleneck") or {}, *(job.get("other_findings") or ())]
    named = (ranks.named(one.get("culprits") or ())[:_CULPRITS_PER_FINDING] for one in findings)
    return sorted({index for found in named for index in found})


def _grid(ranks: _Ranks, metric: str | None, known: Sequence[int]) -> dict[str, Any] | None:
    """One metric of all ranks; values that consecutive ranks share appear once, with their count."""
    count = sum(rank is not None for rank in ranks.rank)
    if not count or not known:
        return None
    place = (
        METRICS.index(metric)
        if metric is not None and METRICS.index(metric) in known
        else _distinguishing(ranks, known)
    )
    numbers = [rank for rank in ranks.rank if rank is not None]
    starts = [0, *(i for i in range(1, count) if numbers[i] != numbers[i - 1] + 1), count]
    return {
        "metric": METRICS[place],
        "ranks": [[numbers[a], b - a] for a, b in pairwise(starts)],
        "nodes": _runs(ranks.node[:count]),
        "gpus": list(ranks.gpu[:count]),
        "stages": _runs(ranks.stage[:count]),
        "culprits": np.flatnonzero(ranks.culprit[:count]).tolist(),
        "values": significant(ranks.values[:count, place], _DIGITS),
    }


def _distinguishing(ranks: _Ranks, known: Sequence[int]) -> int:
    """The metric in which culprits are farthest from the median; the first without any."""
    if not ranks.culprit.any():
        return known[0]
    far = np.abs(ranks.deviation[ranks.culprit]).max(axis=0)
    return max(known, key=lambda place: far[place])


def _picture(ranks: _Ranks, columns: int, known: Sequence[int]) -> dict[str, Any]:
    """For each metric, the most unusual value of the neighbors in each column."""
    count = len(ranks.rank)
    columns = min(columns, count)
    starts = np.arange(columns) * count // columns
    group = np.repeat(np.arange(columns), np.diff([*starts, count]))
    values, deviation = {}, {}
    for place in known:
        far = np.abs(ranks.deviation[:, place])
        worst = np.flatnonzero(far == np.maximum.reduceat(far, starts)[group])
        worst = worst[np.unique(group[worst], return_index=True)[1]]
        values[METRICS[place]] = significant(ranks.values[worst, place], _DIGITS)
        deviation[METRICS[place]] = np.round(ranks.deviation[worst, place], 2).tolist()
    return {
        "columns": columns,
        "values": values,
        "deviation": deviation,
        "culprits": np.unique(group[ranks.culprit]).tolist(),
    }


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    return [[value, sum(1 for _ in same)] for value, same in groupby(values)]
