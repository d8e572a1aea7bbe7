"""The derived numbers of a job as series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfd.aggregator.live_facts import LiveFacts
from perfd.analysis.communication import Communication
from perfd.analysis.data.job_data import Floats, JobData
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Finding
from perfd.formatting import kind_of_source
from perfd.metrics.catalog import Value

_MOST_SLOW_GROUPS = 16
"""With series of their own, as the metric's description promises."""
_MOST_TITLE_CHARS = 128
"""Longest label value; longer titles are cut."""


def identity_values(data: JobData, facts: LiveFacts) -> list[Value]:
    """The series of one job that say what it is and whether it goes on; some change with time alone."""
    return _identity(data, facts, facts.labels)


def derived_values(data: JobData, summary: JobSummary, facts: LiveFacts) -> list[Value]:
    """The derived series of one job. Of the facts they depend on those of `derived_from` only."""
    job = facts.labels
    values = [
        *_steps(data, summary, facts, job),
        *_efficiency(summary, job),
        *_shares(summary, job),
        *_stages(summary, job),
        *_nccl(summary, job),
        *_phases(data, job),
        *_findings(summary, job),
    ]
    values += [("perfd_alerts_firing", {**job, "alertname": name}, 1.0) for name in facts.alerts]
    return values


def derived_from(facts: LiveFacts) -> tuple[object, ...]:
    """What derived series depend on besides the job's numbers."""
    return facts.labels, facts.step_time_change, facts.alerts


def _identity(data: JobData, facts: LiveFacts, job: Mapping[str, str]) -> list[Value]:
    origin = facts.origin
    said = {"title": origin.title, "array_job": origin.array_job, "array_task": origin.array_task}
    named = {label: text[:_MOST_TITLE_CHARS] for label, text in said.items() if text}
    values: list[Value] = [
        ("perfd_job_title_info", {**job, **named}, 1.0 if named else None),
        ("perfd_job_ended", job, float(data.ended_unix_s is not None)),
        ("perfd_job_attempt", job, facts.attempt),
        ("perfd_job_nodes", job, facts.nodes),
        ("perfd_job_ranks", job, facts.ranks),
        ("perfd_log_silent_seconds", job, facts.log_silent_s),
        ("perfd_idle_seconds", job, facts.idle_s),
        ("perfd_restart_stepless_seconds", job, facts.stepless_s),
        ("perfd_first_step_seconds", job, facts.first_step_s),
        ("perfd_log_lines_total", job, facts.log_lines),
        ("perfd_log_unrecognized_lines_total", job, facts.unrecognized_lines),
    ]
    for node, group in sorted(facts.het_groups.items()):
        values.append(("perfd_job_node_het_group", {**job, "node": node}, float(group)))
    if facts.end is not None:
        code = facts.end.exit_code
        how = {"outcome": facts.end.outcome.value, "exit_code": "" if code is None else str(code)}
        values.append(("perfd_job_outcome_info", {**job, **how}, 1.0))
    description = data.description
    if description is None:
        return values
    parallel = description.parallel
    info = {
        **job,
        "framework": description.framework,
        "framework_version": description.framework_version or "",
        "precision": description.precision or description.hlo_precision or "",
    }
    for size in ("tp", "pp", "dp", "cp", "ep", "vp"):
        info[size] = _text(getattr(parallel, size))
    values.append(("perfd_job_info", info, 1.0))
    values.append(("perfd_train_steps", job, description.train_steps))
    return values


def _steps(data: JobData, summary: JobSummary, facts: LiveFacts, job: Mapping[str, str]) -> list[Value]:
    steps = data.steps
    newest = len(steps) - 1
    median, change = summary.step_time_s.median, facts.step_time_change
    return [
        ("perfd_step", job, float(steps.step[newest]) if len(steps) else None),
        ("perfd_loss", job, float(steps.loss[newest]) if len(steps) else None),
        ("perfd_learning_rate", job, float(steps.learning_rate[newest]) if len(steps) else None),
        ("perfd_step_time_last_seconds", job, float(steps.step_time_s[newest]) if len(steps) else None),
        ("perfd_step_time_seconds", job, median),
        ("perfd_step_time_p95_seconds", job, summary.step_time_s.p95),
        ("perfd_steady_steps", job, summary.steps.steady_steps_count if len(steps) else None),
        ("perfd_step_time_jitter_ratio", job, summary.step_time_s.jitter_ratio),
        ("perfd_step_time_baseline_seconds", job, change.baseline_s if change else None),
        ("perfd_step_time_regression_ratio", job, change.growth_ratio if change else None),
        ("perfd_tokens_per_second", job, summary.efficiency.tokens_per_s),
        ("perfd_samples_per_second", job, summary.efficiency.samples_per_s),
    ]


def _efficiency(summary: JobSummary, job: Mapping[str, str]) -> list[Value]:
    by_convention = {**job, "convention": summary.efficiency.flops_convention or ""}
    return [
        ("perfd_model_flops_per_second_per_gpu", by_convention, summary.efficiency.model_flops_per_s_per_gpu),
        ("perfd_mfu_ratio", by_convention, summary.efficiency.mfu_ratio),
        ("perfd_hfu_ratio", by_convention, summary.efficiency.hfu_ratio),
        ("perfd_mfu_clock_adjusted_ratio", by_convention, summary.efficiency.clock_adjusted_mfu_ratio),
        ("perfd_mfu_upper_ratio", job, summary.efficiency.mfu_upper_ratio),
        ("perfd_tensor_active_ratio", job, summary.efficiency.tensor_active_ratio),
        ("perfd_peak_flops_per_second", job, summary.efficiency.peak_flops_per_s),
    ]


def _shares(summary: JobSummary, job: Mapping[str, str]) -> list[Value]:
    communication = summary.communication
    by_source, exposed = (
        {**job, "source": kind_of_source(source)}
        for source in (communication.source, communication.exposed_source)
    )
    return [
        ("perfd_communication_share_ratio", by_source, communication.share_ratio),
        ("perfd_communication_exposed_ratio", exposed, communication.exposed_ratio),
        *_dimensions(communication, job),
        ("perfd_data_share_ratio", job, summary.data.share_ratio),
        ("perfd_optimizer_share_ratio", job, summary.optimizer.share_ratio),
        ("perfd_memory_used_ratio", job, summary.memory.max_used_ratio),
        ("perfd_goodput_ratio", job, summary.goodput_ratio),
    ]


def _dimensions(communication: Communication, job: Mapping[str, str]) -> Iterable[Value]:
    for one in communication.dimensions:
        labels = {**job, "dimension": one.group or "other"}
        by_source, exposed = (
            {**labels, "source": kind_of_source(source)} for source in (one.source, one.exposed_source)
        )
        yield "perfd_communication_dimension_share_ratio", by_source, one.share_ratio
        yield "perfd_communication_dimension_wait_ratio", by_source, one.wait_ratio
        yield "perfd_communication_dimension_exposed_ratio", exposed, one.exposed_ratio


def _stages(summary: JobSummary, job: Mapping[str, str]) -> list[Value]:
    pipeline = summary.pipeline
    values: list[Value] = [
        ("perfd_pipeline_bubble_theory_ratio", job, pipeline.bubble_theory_ratio),
        ("perfd_pipeline_stall_ratio", job, pipeline.stall_ratio),
        ("perfd_pipeline_excess_ratio", job, pipeline.excess_ratio),
    ]
    for stage in pipeline.stages:
        if stage.stage is not None:
            labels = {**job, "stage": str(stage.stage)}
            values.append(("perfd_pipeline_stall_ratio", labels, stage.stall_ratio))
            values.append(("perfd_pipeline_stage_compute_seconds", labels, stage.compute_s))
    return values


def _nccl(summary: JobSummary, job: Mapping[str, str]) -> list[Value]:
    kernels = summary.nccl
    values: list[Value] = [
        ("perfd_nccl_share_ratio", job, kernels.share_ratio),
        ("perfd_nccl_transfer_ratio", job, kernels.transfer_ratio),
        ("perfd_nccl_wait_ratio", job, kernels.wait_ratio),
        ("perfd_nccl_missing_ranks", job, None if kernels.source is None else len(kernels.missing_ranks)),
    ]
    for kind in kernels.kinds:
        labels = {**job, "group": kind.group or "other", "operation": kind.operation}
        values.append(("perfd_nccl_bus_bytes_per_second", labels, kind.bus_bytes_per_s))
        values.append(("perfd_nccl_expected_bus_bytes_per_second", labels, kind.expected_bus_bytes_per_s))
        values.append(("perfd_nccl_transfer_seconds", labels, kind.transfer_s))
        values.append(("perfd_nccl_group_wait_ratio", labels, kind.wait_ratio))
        # Of a part of the operations, as the Inspector records, no share of time follows.
        share = None if kernels.share_ratio is None else kind.kernel_ratio
        values.append(("perfd_nccl_group_share_ratio", labels, share))
    for group in kernels.slow_groups[:_MOST_SLOW_GROUPS]:
        labels = {
            **job,
            "group": group.group or "other",
            "operation": group.operation,
            "communicator": group.communicator,
        }
        values.append(("perfd_link_slowdown_ratio", labels, group.slowdown_ratio))
    for rank in kernels.ranks:
        labels = {**job, "rank": str(rank.rank)}
        values.append(("perfd_rank_wait_ratio", labels, rank.wait_ratio))
        values.append(("perfd_rank_gain_ratio", labels, rank.gain_ratio))
    values += [
        ("perfd_rank_slowdown_ratio", {**job, "rank": str(slow.rank)}, slow.ratio)
        for slow in summary.slowdowns
    ]
    return values


def _findings(summary: JobSummary, job: Mapping[str, str]) -> list[Value]:
    confidence: dict[str, float] = {}
    gain: dict[str, float] = {}
    longer_for_s: dict[str, float] = {}
    for finding in summary.findings:
        kind = finding.kind.value
        confidence[kind] = max(finding.confidence, confidence.get(kind, 0.0))
        if finding.gain_ratio is not None:
            gain[kind] = max(finding.gain_ratio, gain.get(kind, 0.0))
        if finding.longer_for_s is not None:
            longer_for_s[kind] = max(finding.longer_for_s, longer_for_s.get(kind, 0.0))
    values: list[Value] = [
        ("perfd_finding_confidence_ratio", {**job, "kind": kind}, confidence[kind]) for kind in confidence
    ]
    values += [("perfd_finding_gain_ratio", {**job, "kind": kind}, ratio) for kind, ratio in gain.items()]
    values += [
        ("perfd_finding_longer_seconds", {**job, "kind": kind}, lasted_s)
        for kind, lasted_s in longer_for_s.items()
    ]
    named = {
        (finding.kind.value, str(rank)): finding.confidence
        for finding in summary.findings
        for rank in _one_of_node(finding)
    }
    values += [
        ("perfd_culprit_confidence_ratio", {**job, "kind": kind, "rank": rank}, sure)
        for (kind, rank), sure in named.items()
    ]
    return values


def _one_of_node(finding: Finding) -> Sequence[int]:
    """The ranks that are culprits; of a node the first one, since an alert for each would be as many."""
    on_node = any(culprit.kind == "node" for culprit in finding.culprits)
    return finding.culprit_ranks[:1] if on_node else finding.culprit_ranks


def _phases(data: JobData, job: Mapping[str, str]) -> list[Value]:
    return [
        ("perfd_step_phase_seconds", {**job, "phase": phase, "stat": stat}, _median(column))
        for stat, columns in (("min", data.phases.min_s), ("max", data.phases.max_s))
        for phase, column in columns.items()
    ]


def _median(column: Floats) -> float | None:
    present = column[np.isfinite(column)]
    return float(np.median(present)) if len(present) else None


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
