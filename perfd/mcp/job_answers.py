"""Jobs, their summaries and findings as answers: documents of the API in, small objects out; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfd.mcp.quantities import (
    MAX_LIST,
    NAME_CHARS,
    AnswerColumn,
    Json,
    known,
    listed,
    plain,
    quantity,
    table,
    unit_of,
    untrusted,
    value_at,
)

_STEADY = "median over the newest steady steps"
JOB_COLUMNS = (
    AnswerColumn(name="job", unit="text", path="name", source="training log or scheduler"),
    AnswerColumn(name="framework", unit="text", source="training log"),
    AnswerColumn(name="ended", unit="state", source="agents"),
    AnswerColumn(name="outcome", unit="state", source="exit code or scheduler"),
    AnswerColumn(name="nodes", source="agents"),
    AnswerColumn(name="world_size", path="parallel.world_size", source="printed arguments or ranks"),
    AnswerColumn(name="step", source="training log or NCCL"),
    AnswerColumn(name="train_steps", source="printed arguments"),
    AnswerColumn(name="step_time_s", source=_STEADY),
    AnswerColumn(name="tokens_per_s", source=_STEADY),
    AnswerColumn(name="mfu_ratio", source=f"model FLOPs over dense peak, {_STEADY}"),
    AnswerColumn(name="communication_ratio", source=f"timers or NCCL, {_STEADY}"),
    AnswerColumn(name="firing_alerts", source="rules of the aggregator"),
    AnswerColumn(name="bottleneck", unit="text", path="bottleneck.sentence", source="findings"),
    AnswerColumn(
        name="gain_ratio", path="bottleneck.gain_ratio", source="findings: share of a step saved at best"
    ),
)
_STEPS = "steps.source"
_SUMMARY = (
    ("step_time_s.median", _STEPS),
    ("step_time_s.p95", _STEPS),
    ("step_time_s.jitter_ratio", _STEPS),
    ("step_time_s.outlier_ratio", _STEPS),
    ("steps.count", _STEPS),
    ("steps.steady_count", _STEPS),
    ("steps.last", _STEPS),
    ("efficiency.tokens_per_s", _STEPS),
    ("efficiency.tokens_per_s_per_gpu", _STEPS),
    ("efficiency.model_flops_per_s_per_gpu", "efficiency.mfu_source"),
    ("efficiency.mfu_ratio", "efficiency.mfu_source"),
    ("efficiency.hfu_ratio", "efficiency.mfu_source"),
    ("efficiency.peak_flops_per_s", "=the table of dense peaks"),
    ("efficiency.tensor_active_ratio", "=GPM by NVML"),
    ("efficiency.mfu_upper_ratio", "=GPM by NVML, clocks"),
    ("communication.share_ratio", "communication.source"),
    ("communication.exposed_ratio", "communication.exposed_source"),
    ("communication.overlap_ratio", "communication.source"),
    ("communication.bus_bytes_per_s", "communication.source"),
    ("communication.link_bytes_per_s", "=the table of links"),
    ("nccl.share_ratio", "nccl.source"),
    ("nccl.wait_ratio", "nccl.source"),
    ("pipeline.bubble_theory_ratio", "=computed from the printed arguments"),
    ("pipeline.stall_ratio", "pipeline.source"),
    ("pipeline.excess_ratio", "pipeline.source"),
    ("data.share_ratio", "data.source"),
    ("optimizer.share_ratio", "optimizer.source"),
    ("breakdown.forward_ratio", "=timers"),
    ("breakdown.backward_ratio", "=timers"),
    ("breakdown.unattributed_ratio", "=timers"),
    ("memory.max_used_ratio", "memory.source"),
    ("goodput_ratio", _STEPS),
)
"""Numbers of a summary, and the path of each one's source, or after `=` the source itself."""
_LAYOUT = ("world_size", "tp", "pp", "dp", "cp", "ep", "vp", "micro_batch_size", "global_batch_size")
_UNIT_OF_PART = {"step_time_s.median": "s", "step_time_s.p95": "s"}


def job_rows(jobs: Sequence[Json]) -> dict[str, Any]:
    """A table of rows of perfd.fleet/2."""
    return table(JOB_COLUMNS, jobs)


def selected_jobs(jobs: Sequence[Json], state: str, contained: str | None) -> list[Json]:
    """The jobs of a state (`running`, `ended` or `all`) whose name contains a text."""
    return [
        job
        for job in jobs
        if (state == "all" or bool(job.get("ended")) == (state == "ended"))
        and (contained is None or contained in str(job.get("name")))
    ]


def summary(job: Json) -> dict[str, Any]:
    """What a job is, its numbers with unit and source, and the headline; `unknown` names what is missing."""
    numbers = {path: _number(job, path, source) for path, source in _SUMMARY}
    layout = {
        key: quantity(value_at(job, f"parallel.{key}"), "count", "printed arguments or ranks")
        for key in _LAYOUT
    }
    return {
        "job": untrusted(job.get("name"), NAME_CHARS),
        "framework": untrusted(job.get("framework"), NAME_CHARS),
        "parallel": known(layout),
        "metrics": known(numbers),
        "unknown": [path for path, number in numbers.items() if number is None],
        "mfu": known(
            {
                "flops_convention": untrusted(value_at(job, "efficiency.flops_convention"), NAME_CHARS),
                "peak_precision": untrusted(value_at(job, "efficiency.peak_precision"), NAME_CHARS),
                "peak_unverified": value_at(job, "efficiency.peak_unverified"),
                "missing": untrusted(value_at(job, "efficiency.mfu_missing")),
                "flops_check": untrusted(value_at(job, "efficiency.flops_check.finding")),
            }
        ),
        "bottleneck": finding(bottleneck) if isinstance(bottleneck := job.get("bottleneck"), dict) else None,
        "finding_count": len(listed(job, "findings")),
        "troubles": [untrusted(text) for text in listed(job, "troubles")[:MAX_LIST]],
    }


def finding(found: Json) -> dict[str, Any]:
    """One finding with its evidence; numbers in the sentences of evidence name their sources there."""
    culprits = listed(found, "culprits")
    gain = quantity(found.get("gain_ratio"), "ratio", "perfd's analysis: share of a step saved at best")
    return {
        "kind": plain(found.get("kind"), NAME_CHARS),
        "sentence": untrusted(found.get("sentence")),
        "certainty": plain(found.get("certainty") or "", NAME_CHARS),
        "may_be_over": found.get("may_be_over") is True,
        "confidence": quantity(found.get("confidence"), "ratio", "perfd's analysis: 0 to 1"),
        "gain": gain,
        "culprits": [untrusted(_culprit(culprit), NAME_CHARS) for culprit in culprits[:MAX_LIST]],
        "culprit_count": len(culprits),
        "evidence": [untrusted(text) for text in listed(found, "evidence")[:MAX_LIST]],
        "advice": untrusted(found.get("advice")),
        "effects": [untrusted(_effect(effect), NAME_CHARS) for effect in listed(found, "effects")[:MAX_LIST]],
    }


def _number(job: Json, path: str, source: str) -> dict[str, Any] | None:
    unit = _UNIT_OF_PART.get(path) or unit_of(path.rpartition(".")[2])
    named = source[1:] if source.startswith("=") else value_at(job, source)
    if isinstance(named, str) and path.startswith("efficiency.") and source.endswith("mfu_source"):
        named = f"{named}: {value_at(job, 'efficiency.flops_convention') or 'unknown convention'}"
    return quantity(value_at(job, path), unit, named)


def _culprit(culprit: object) -> str:
    if not isinstance(culprit, dict):
        return str(culprit)
    return f"{culprit.get('kind')} {culprit.get('id')}"


def _effect(effect: object) -> str:
    named = isinstance(effect, dict) and (effect.get("sentence") or effect.get("name") or effect.get("kind"))
    return str(named or effect)
