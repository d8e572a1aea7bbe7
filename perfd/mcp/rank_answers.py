"""Steps and ranks as tables: documents of the API in, small objects out; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfd.mcp.quantities import AnswerColumn, Json, is_number, listed, table, value_at

_LOG = "training log, or NCCL without one"
STEP_COLUMNS = (
    AnswerColumn(name="step", source=_LOG),
    AnswerColumn(name="time_unix_s", source="agent's clock"),
    AnswerColumn(name="step_time_s", source=_LOG),
    AnswerColumn(name="steps_covered", source=_LOG),
    AnswerColumn(name="warmup", unit="state", source="perfd's analysis"),
    AnswerColumn(name="tokens_per_s", source="global batch and sequence length over step time"),
    AnswerColumn(name="flops_per_s_per_gpu", source="training log"),
    AnswerColumn(name="global_batch_size", source=_LOG),
    AnswerColumn(name="loss", unit="1", path="losses.loss", source="training log"),
    AnswerColumn(name="attempt", source="history"),
)
_NVML = "GPM by NVML, mean over steady steps"
_NCCL = "NCCL profiler plugin: share of a step"
RANK_COLUMNS = (
    AnswerColumn(name="rank", source="placement of ranks"),
    AnswerColumn(name="node", unit="text", source="agent"),
    AnswerColumn(name="gpu", unit="text", source="NVML"),
    AnswerColumn(name="sm_active_ratio", source=_NVML),
    AnswerColumn(name="tensor_active_ratio", source=_NVML),
    AnswerColumn(name="dram_active_ratio", source=_NVML),
    AnswerColumn(name="power_w", source="NVML, mean over steady steps"),
    AnswerColumn(name="nccl_busy_ratio", path="nccl.busy_ratio", source=_NCCL),
    AnswerColumn(name="nccl_wait_ratio", path="nccl.wait_ratio", source=_NCCL),
    AnswerColumn(name="gain_ratio", path="nccl.gain_ratio", source=f"{_NCCL} saved if as fast as its peers"),
    AnswerColumn(
        name="slowdown_ratio",
        path="nccl.slowdown_ratio",
        source="NCCL profiler plugin: its time without waits over that of its peers",
    ),
    AnswerColumn(
        name="relative_time_ratio",
        path="timer.ratio",
        source="timers by rank, over the median of its peers",
    ),
)
RANK_ORDERS = ("rank", "gain_ratio", "slowdown_ratio", "power_w", "sm_active_ratio", "tensor_active_ratio")


def steps(entries: Sequence[Json], to_step: int | None, most: int) -> dict[str, Any]:
    """A page of perfd.steps/1, of one entry more than is shown; `next_from_step` null: no more."""
    within = [step for step in entries if to_step is None or step["step"] <= to_step]
    shown = within[:most]
    after = within[most]["step"] if len(within) > most else None
    return {**table(STEP_COLUMNS, shown), "page": {"limit": most, "next_from_step": after}}


def ranks(job: Json, order: str) -> list[dict[str, Any]]:
    """An entry per rank of a summary: of its GPU, of its NCCL operations and of timers, in an order.

    By rank upward; by another number the largest first, and ranks without it last.
    """
    found: dict[int, dict[str, Any]] = {}
    for gpu in listed(job, "gpus"):
        if isinstance(gpu, dict) and is_number(gpu.get("rank")):
            found.setdefault(gpu["rank"], {}).update(gpu)
    for key, rows in (("nccl", _nccl_ranks(job)), ("timer", listed(job, "slowdowns"))):
        for row in rows:
            if isinstance(row, dict) and is_number(row.get("rank")):
                found.setdefault(row["rank"], {})[key] = row
    entries = [{**entry, "rank": rank} for rank, entry in sorted(found.items())]
    if order == "rank":
        return entries
    path = next(column.path or column.name for column in RANK_COLUMNS if column.name == order)
    return sorted(entries, key=lambda entry: -_sortable(value_at(entry, path)))


def rank_rows(entries: Sequence[Json]) -> dict[str, Any]:
    """A table of entries of `ranks`; columns that are unknown for each of them are left out and named."""
    known = [
        column
        for column in RANK_COLUMNS
        if any(value_at(entry, column.path or column.name) is not None for entry in entries)
    ]
    missing = [column.name for column in RANK_COLUMNS if column not in known]
    return {**table(known, entries), "unknown": missing}


def _nccl_ranks(job: Json) -> list[Any]:
    nccl = job.get("nccl")
    return listed(nccl, "ranks") if isinstance(nccl, dict) else []


def _sortable(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("-inf")
