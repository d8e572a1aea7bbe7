"""Derived and raw numbers as series, with keys that stay the same objects while the series do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.aggregator.jobs import JobEnd, JobRegistry
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.state import NodeState
from perfd.aggregator.state.gpu_owners import exported_gpu_owners
from perfd.analysis.communication import Communication
from perfd.analysis.data.job_data import Floats, JobData
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.steps import StepTimeChange
from perfd.formatting import kind_of_source
from perfd.metrics.catalog import Value
from perfd.metrics.exposition import entity_labels
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Scope

_MOST_SLOW_GROUPS = 16


@dataclass(frozen=True, slots=True)
class Block:
    """Some series that come and go together."""

    keys: Sequence[SeriesKey]
    values: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """What is known of a job now and is not in the arrays of the analysis."""

    attempt: int
    nodes: int
    ranks: int | None
    log_silent_s: float | None
    log_lines: int | None
    unrecognized_lines: int | None
    step_time_change: StepTimeChange | None
    alerts: Sequence[str] = ()
    """Names of the alerts of the job that fire, sorted."""
    exported: bool = True
    """Whether its numbers are series."""
    end: JobEnd | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """The keys of some blocks in one list."""

    parts: Sequence[Sequence[SeriesKey]]
    keys: Sequence[SeriesKey]

    def is_of(self, parts: Sequence[Sequence[SeriesKey]]) -> bool:
        return len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))


class Blocks:
    """Makes blocks and frames; an unchanged set of series gives the same `keys` object again."""

    def __init__(self, *, label_chars: int = 256) -> None:
        self._keys: dict[tuple[str, ...], tuple[SeriesKey, ...]] = {}
        self._interned: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey | None] = {}
        self._label_chars = label_chars
        self.refused = 0
        """How many series are left out because the value of a label is too long."""
        self._groups: dict[str, _Group] = {}

    def block(self, name: tuple[str, ...], values: Iterable[Value]) -> Block:
        """A block of the name from values in a stable order."""
        keys, numbers = [], []
        for metric, labels, value in values:
            key = self._key(metric, labels)
            if key is None:
                continue
            keys.append(key)
            numbers.append(np.nan if value is None else value)
        old = self._keys.get(name)
        new = tuple(keys)
        if old != new:
            self._keys[name] = old = new
        return Block(old, np.array(numbers, np.float64))

    def cached(self, name: tuple[str, ...], values: Floats, keys: Callable[[], Sequence[SeriesKey]]) -> Block:
        """A block whose keys are made only if its name is new: the name has all that they depend on."""
        known = self._keys.get(name)
        if known is None:
            known = self._keys[name] = tuple(keys())
        return Block(known, values)

    def keep(self, names: Iterable[tuple[str, ...]]) -> None:
        """Forget all blocks but these."""
        kept = set(names)
        for name in [name for name in self._keys if name not in kept]:
            del self._keys[name]
        if len(self._interned) > 4 * (1024 + sum(map(len, self._keys.values()))):
            self._interned.clear()

    def frame(self, group: str, time_unix_s: float, blocks: Sequence[Block]) -> SeriesFrame:
        """The blocks of a group at one instant; the same blocks give the same `keys` object again."""
        known = self._groups.get(group)
        parts = [block.keys for block in blocks]
        if known is None or not known.is_of(parts):
            known = self._groups[group] = _Group(parts, [key for part in parts for key in part])
        values = np.concatenate([block.values for block in blocks]) if blocks else np.zeros(0)
        return SeriesFrame(time_unix_s, known.keys, values)

    def _key(self, metric: str, labels: Mapping[str, str]) -> SeriesKey | None:
        identity = (metric, tuple(labels.items()))
        if identity not in self._interned:
            fits = all(len(text) <= self._label_chars for text in labels.values())
            self._interned[identity] = SeriesKey.of(metric, labels) if fits else None
            self.refused += not fits
        return self._interned[identity]


def job_values(data: JobData, summary: JobSummary, facts: LiveFacts) -> list[Value]:
    """The derived series of one job."""
    job = {"job": data.name}
    values = [
        *_identity(data, facts, job),
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


def node_block(
    blocks: Blocks,
    names: MetricNames,
    node: NodeState,
    jobs: JobRegistry,
    values: Mapping[Scope, Floats],
) -> tuple[tuple[str, ...], Block]:
    """The raw series of one node, with the name of the block. `values` is entities by metrics by scope."""

    def keys() -> Sequence[SeriesKey]:
        return list(_raw_keys(names, node, exported_gpu_owners(node, jobs)))

    name = ("node", node.name, str(node.version))
    flat = [values[scope].ravel() for scope in node.readings]
    return name, blocks.cached(name, np.concatenate(flat) if flat else np.zeros(0), keys)


def _raw_keys(
    names: MetricNames, node: NodeState, owners: Mapping[str, tuple[str, int | None]]
) -> Iterable[SeriesKey]:
    for scope, readings in node.readings.items():
        exported = [names.exported(scope, column) for column in readings.layout.metrics.known]
        for entity in readings.layout.entities.known:
            labels = entity_labels(scope, entity, node.name)
            if scope is Scope.GPU and entity in owners:
                job, rank = owners[entity]
                labels |= {"job": job, "rank": "" if rank is None else str(rank)}
            # The labels are sorted once for an entity, not once for each of its metrics.
            sorted_labels = SeriesKey.of("", labels).labels
            for name in exported:
                yield SeriesKey(name, sorted_labels)


def _identity(data: JobData, facts: LiveFacts, job: Mapping[str, str]) -> list[Value]:
    values: list[Value] = [
        ("perfd_job_ended", job, float(data.ended_unix_s is not None)),
        ("perfd_job_attempt", job, facts.attempt),
        ("perfd_job_nodes", job, facts.nodes),
        ("perfd_job_ranks", job, facts.ranks),
        ("perfd_log_silent_seconds", job, facts.log_silent_s),
        ("perfd_log_lines_total", job, facts.log_lines),
        ("perfd_log_unrecognized_lines_total", job, facts.unrecognized_lines),
    ]
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
        "precision": description.precision or "",
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
    told, exposed = (
        {**job, "source": kind_of_source(source)}
        for source in (communication.source, communication.exposed_source)
    )
    return [
        ("perfd_communication_share_ratio", told, communication.share_ratio),
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
        told, exposed = (
            {**labels, "source": kind_of_source(source)} for source in (one.source, one.exposed_source)
        )
        yield "perfd_communication_dimension_share_ratio", told, one.share_ratio
        yield "perfd_communication_dimension_wait_ratio", told, one.wait_ratio
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
    for finding in summary.findings:
        kind = finding.kind.value
        confidence[kind] = max(finding.confidence, confidence.get(kind, 0.0))
    values: list[Value] = [
        ("perfd_finding_confidence_ratio", {**job, "kind": kind}, confidence[kind]) for kind in confidence
    ]
    named = {
        (finding.kind.value, str(culprit.id)): finding.confidence
        for finding in summary.findings
        for culprit in finding.culprits
        if culprit.kind == "rank"
    }
    values += [
        ("perfd_culprit_confidence_ratio", {**job, "kind": kind, "rank": rank}, sure)
        for (kind, rank), sure in named.items()
    ]
    return values


def _phases(data: JobData, job: Mapping[str, str]) -> list[Value]:
    return [
        ("perfd_step_phase_seconds", {**job, "phase": phase, "stat": stat}, _median(column))
        for stat, columns in (("min", data.phases.min_s), ("max", data.phases.max_s))
        for phase, column in columns.items()
    ]


def _median(column: Floats) -> float | None:
    present = column[~np.isnan(column)]
    return float(np.median(present)) if len(present) else None


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
