"""Expressions for the charts of a job, and charts of what they give: pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfd.aggregator.prometheus_charts.prometheus_ranges import QueriedSeries
from perfd.model import JOB_LABELS, GpuColumn

_PROGRESS = {
    "perfd_step": "step",
    "perfd_step_time_seconds": "step_time_s",
    "perfd_mfu_ratio": "mfu_ratio",
    "perfd_loss": "loss",
}
_GPUS = {
    "perfd_gpu_sm_active_ratio": GpuColumn.SM_ACTIVE,
    "perfd_gpu_tensor_active_ratio": GpuColumn.TENSOR_ACTIVE,
    "perfd_gpu_dram_active_ratio": GpuColumn.DRAM_ACTIVE,
    "perfd_gpu_power_watts": GpuColumn.POWER,
    "perfd_gpu_temperature_celsius": GpuColumn.TEMPERATURE,
    "perfd_gpu_sm_clock_hertz": GpuColumn.SM_CLOCK,
}
_MEMORY = "memory_used_ratio"
_USED, _TOTAL = "perfd_gpu_memory_used_bytes", "perfd_gpu_memory_total_bytes"
_STATISTICS = {"median": "quantile", "lowest": "min", "highest": "max", "count": "count"}


def progress_expression(job: Mapping[str, str]) -> str:
    """Step, step time, MFU and loss of the job with these labels, whoever scraped them."""
    return f"max by (__name__) ({_selector(_PROGRESS, job)})"


def steps_expression(job: Mapping[str, str], window_s: float) -> str:
    """Something at each instant before which the job reported a step in that time."""
    return f"max(count_over_time({_selector(['perfd_step'], job)}[{window_s:.0f}s]))"


def progress_of(series: Sequence[QueriedSeries]) -> dict[str, Any]:
    """Columns of schema perfd.series/1; instants without a step are left out, and those of a repeated one."""
    columns = {
        name: dict(zip(one.times_unix_s, one.values, strict=True))
        for one in series
        if (name := _PROGRESS.get(one.labels.get("__name__", "")))
    }
    steps = columns.pop("step", {})
    times: list[float] = []
    first = math.inf
    # Backwards, so that of a repeated step the newest is kept, as in memory.
    for at, step in sorted(steps.items(), reverse=True):
        if step < first and math.isfinite(step):
            times.insert(0, at)
            first = step

    def column(name: str) -> list[float | None]:
        found = columns.get(name, {})
        return [value if math.isfinite(value := found.get(at, math.nan)) else None for at in times]

    return {
        "step": [int(steps[at]) for at in times],
        "time_unix_s": times,
        "step_time_s": column("step_time_s"),
        "step_time_max_s": [None] * len(times),
        "mfu_ratio": column("mfu_ratio"),
        "loss": column("loss"),
        "phases_s": {},
        "steady": [True] * len(times),
    }


def with_earlier(
    earlier: Mapping[str, Any], columns: Mapping[str, Any], within: tuple[float, float] | None
) -> dict[str, Any]:
    """Columns of schema perfd.series/1 with earlier points in front, of steps `within` two numbers."""
    low, high = within or (-math.inf, math.inf)
    steps, times = columns["step"], columns["time_unix_s"]
    first_step = steps[0] if steps else math.inf
    first_s = next((at for at in times if at is not None and math.isfinite(at)), math.inf)
    kept = [
        row
        for row, (step, at) in enumerate(zip(earlier["step"], earlier["time_unix_s"], strict=True))
        if low <= step <= high and step < first_step and at < first_s
    ]

    def joined(name: str, own: Sequence[Any]) -> list[Any]:
        found = earlier.get(name)
        return [None if found is None else found[row] for row in kept] + list(own)

    return {
        name: {phase: joined("", values) for phase, values in own.items()}
        if isinstance(own, Mapping)
        else joined(name, own)
        for name, own in columns.items()
    }


def gpu_expression(job: Mapping[str, str], rank: int | None) -> str:
    """Statistics over the GPUs of a job, and the values of one rank's; the label `statistic` says which."""
    return _statistics(_selector(_GPUS, job), _selector(_GPUS, job, rank))


def memory_expression(job: Mapping[str, str], rank: int | None) -> str:
    """The same of the share of memory in use."""

    def share(rank: int | None) -> str:
        used, total = (_selector({name}, job, rank) for name in (_USED, _TOTAL))
        return f"{used} / {total}"

    return _statistics(share(None), share(rank))


def gpus_of(gpus: Sequence[QueriedSeries], memory: Sequence[QueriedSeries]) -> dict[str, Any]:
    """The keys of schema perfd.gpu_series/1."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    count = 0
    for one in (*gpus, *memory):
        column = _GPUS.get(one.labels.get("__name__", ""))
        statistic = one.labels.get("statistic", "")
        if statistic == "count":
            count = max(count, *(int(value) for value in one.values if math.isfinite(value)), 0)
        elif column is not None or "__name__" not in one.labels:
            values = dict(zip(one.times_unix_s, one.values, strict=True))
            found.setdefault(column.value if column else _MEMORY, {})[statistic] = values
    times = sorted({at for columns in found.values() for values in columns.values() for at in values})
    return {
        "time_unix_s": times,
        "gpus": count,
        "metrics": {
            name: {
                statistic: [
                    value if math.isfinite(value := columns[statistic].get(at, math.nan)) else None
                    for at in times
                ]
                for statistic in ("median", "lowest", "highest", "rank")
                if statistic in columns or statistic != "rank"
            }
            for name, columns in found.items()
            if {"median", "lowest", "highest"} <= columns.keys()
        },
    }


def _statistics(all_gpus: str, of_rank: str) -> str:
    parts = [
        _labelled(f"{function} by (__name__) ({'0.5, ' * (function == 'quantile')}{all_gpus})", statistic)
        for statistic, function in _STATISTICS.items()
    ]
    if of_rank != all_gpus:
        parts.append(_labelled(f"max by (__name__) ({of_rank})", "rank"))
    return " or ".join(parts)


def _labelled(expression: str, statistic: str) -> str:
    return f'label_replace({expression}, "statistic", "{statistic}", "", "")'


def _selector(names: Iterable[str], job: Mapping[str, str], rank: int | None = None) -> str:
    matchers = [f'__name__=~"{"|".join(sorted(names))}"']
    # A string of PromQL is quoted as one of Go, of which JSON's are a part.
    matchers += [
        f"{name}={json.dumps(job[name], ensure_ascii=False)}" for name in JOB_LABELS if job.get(name)
    ]
    matchers += [] if rank is None else [f'rank="{rank}"']
    return "{" + ", ".join(matchers) + "}"
