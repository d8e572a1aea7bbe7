"""Alerts, captures and their traces as answers: documents of the API in, small objects out; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from perfd.mcp.job_answers import finding
from perfd.mcp.quantities import (
    MAX_LIST,
    NAME_CHARS,
    AnswerColumn,
    Json,
    is_number,
    known,
    listed,
    plain,
    quantity,
    table,
    untrusted,
    value_at,
)

_CLOCK = "aggregator's clock"
_ENGINE = "rules of the aggregator"
ALERT_COLUMNS = (
    AnswerColumn(name="alert", unit="text", path="name", source=_ENGINE),
    AnswerColumn(name="job", unit="text", source=_ENGINE),
    AnswerColumn(name="state", unit="state", source=_ENGINE),
    AnswerColumn(name="severity", unit="text", path="labels.severity", source=_ENGINE),
    AnswerColumn(name="summary", unit="text", path="annotations.summary", source=_ENGINE),
    AnswerColumn(name="value", unit="as the expression of the rule", source=_ENGINE),
    AnswerColumn(name="first_step", source="newest step when it began to fire"),
    AnswerColumn(name="fired_at_unix_s", source=_CLOCK),
    AnswerColumn(name="resolved_at_unix_s", source=_CLOCK),
)
CAPTURE_COLUMNS = (
    AnswerColumn(name="id", unit="text", source=_CLOCK),
    AnswerColumn(name="job", unit="text", source="request"),
    AnswerColumn(name="tool", unit="text", source="capture tool"),
    AnswerColumn(name="alert", unit="text", source=_ENGINE),
    AnswerColumn(name="state", unit="state", source="agents"),
    AnswerColumn(name="reason", unit="text", source="agents"),
    AnswerColumn(name="requested_unix_s", source=_CLOCK),
    AnswerColumn(name="ended_unix_s", source=_CLOCK),
    AnswerColumn(name="verdict", unit="text", path="report.words", source="analysis of the trace"),
)
_RANK_COLUMNS = (
    AnswerColumn(name="rank", source="placement of ranks"),
    AnswerColumn(name="node", unit="text", source="agent"),
    AnswerColumn(name="state", unit="state", source="agent"),
    AnswerColumn(name="reason", unit="text", source="agent"),
    AnswerColumn(name="whole_steps", source="agent"),
    AnswerColumn(name="files", source="agent"),
    AnswerColumn(name="size_bytes", source="agent"),
)
_TRACE_RANK_COLUMNS = (
    AnswerColumn(name="rank", source="trace"),
    AnswerColumn(name="steps", source="marked steps of the trace"),
    AnswerColumn(name="span_s", source="trace, mean of a step"),
    AnswerColumn(name="compute_s", source="kernels of the trace, mean of a step"),
    AnswerColumn(name="communication_s", source="NCCL kernels of the trace, mean of a step"),
    AnswerColumn(
        name="exposed_communication_s", source="communication that no compute overlaps, mean of a step"
    ),
    AnswerColumn(name="idle_s", source="no GPU operation, mean of a step"),
)
_KERNEL_COLUMNS = (
    AnswerColumn(name="rank", source="trace"),
    AnswerColumn(name="kernel", unit="text", source="trace"),
    AnswerColumn(name="total_s", source="all its runs in the trace"),
)
_KERNELS = 10
"""Of a trace in one answer."""


def alert_rows(alerts: Sequence[Json]) -> dict[str, Any]:
    """A table of entries of perfd.alerts/1."""
    return table(ALERT_COLUMNS, alerts)


def capture_rows(captures: Sequence[Json]) -> dict[str, Any]:
    """A table of entries of perfd.capture/1."""
    return table(CAPTURE_COLUMNS, captures)


def capture(found: Json, ranks: Sequence[Json]) -> dict[str, Any]:
    """One capture with some of its ranks: state, verdict, where the time went, and files."""
    report = found.get("report")
    rows = [{**rank, **_files(rank)} for rank in ranks]
    states = Counter(plain(rank.get("state"), NAME_CHARS) for rank in listed(found, "ranks"))
    return {
        "id": untrusted(found.get("id"), NAME_CHARS),
        "job": untrusted(found.get("job"), NAME_CHARS),
        "started_by": untrusted(found.get("alert") or "by hand", NAME_CHARS),
        "tool": untrusted(found.get("tool"), NAME_CHARS),
        "state": plain(found.get("state"), NAME_CHARS),
        "reason": untrusted(found.get("reason") or None),
        "requested": quantity(found.get("requested_unix_s"), "s since 1970-01-01 UTC", _CLOCK),
        "ended": quantity(found.get("ended_unix_s"), "s since 1970-01-01 UTC", _CLOCK),
        "rank_states": dict(states),
        "verdict": untrusted(value_at(report, "words")),
        "shares": _shares(value_at(report, "shares"), "analysis of the capture's traces"),
        "overlap": quantity(
            value_at(report, "overlap_ratio"), "ratio", "analysis of the traces, mean over ranks"
        ),
        "ranks": table(_RANK_COLUMNS, rows),
    }


def trace(document: Json, ranks: Sequence[Json]) -> dict[str, Any]:
    """What limits a captured job by perfd.trace/2, and the steps and longest kernels of some of its ranks."""
    kernels = [
        {"rank": rank.get("rank"), "kernel": kernel.get("name"), "total_s": kernel.get("total_s")}
        for rank in ranks
        for kernel in listed(rank, "kernels")
        if isinstance(kernel, dict)
    ]
    longest = sorted(kernels, key=lambda kernel: -_number(kernel["total_s"]))[:_KERNELS]
    return {
        "mfu": quantity(value_at(document, "model_use.mfu_ratio"), "ratio", "analysis of the traces"),
        "shares": _shares(document.get("shares"), "analysis of the traces"),
        "bottleneck": finding(bottleneck)
        if isinstance(bottleneck := document.get("bottleneck"), dict)
        else None,
        "finding_count": len(listed(document, "findings")),
        "ranks": table(_TRACE_RANK_COLUMNS, [_steps_of(rank) for rank in ranks]),
        "kernels": {**table(_KERNEL_COLUMNS, longest), "total": len(kernels)},
    }


def _steps_of(rank: Json) -> dict[str, Any]:
    steps = [step for step in listed(rank, "steps") if isinstance(step, dict)]
    means = {
        column.name: _mean([step.get(column.name) for step in steps]) for column in _TRACE_RANK_COLUMNS[2:]
    }
    return {"rank": rank.get("rank"), "steps": len(steps), **means}


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if is_number(value)]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def _files(rank: Json) -> dict[str, Any]:
    files = [file for file in listed(rank, "files") if isinstance(file, dict) and not file.get("removed")]
    return {"files": len(files), "size_bytes": sum(_number(file.get("size_bytes")) for file in files)}


def _shares(shares: object, source: str) -> dict[str, Any] | None:
    if not isinstance(shares, dict):
        return None
    found = {plain(name, NAME_CHARS): quantity(value, "ratio", source) for name, value in shares.items()}
    return known(dict(list(found.items())[:MAX_LIST]))


def _number(value: Any) -> float:  # noqa: ANN401  (whatever JSON holds)
    return float(value) if is_number(value) else 0.0
