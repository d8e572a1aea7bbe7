"""The report of a job without a trace, from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfd.analysis.collectives import busiest
from perfd.analysis.flops.mfu_tier import attainable_mfu
from perfd.analysis.steps import Stage
from perfd.formatting import UNKNOWN, bandwidth, count, data_size, duration, flops_per_s, percent, power
from perfd.model import Alert
from perfd.report.report_model import (
    Bars,
    BarSegment,
    Report,
    ReportFinding,
    ReportMetric,
    ReportTable,
    StepLine,
)

if TYPE_CHECKING:  # Of traces alone a report must not wait for the live analysis to load.
    from perfd.analysis.diagnosis import JobSummary

_BOUNDS = {"at_least": "busiest", "at_most": "idlest"}
"""What a stage is called of which only a bound is known."""
_LEAST_STEPS = 2
"""Of a line of a report."""
CHART_POINTS = 2_000
"""Of a line of a report: more than its pixels, so that a zoom shows more."""
_LIMITS = {True: "latency", False: "bandwidth", None: UNKNOWN}
_FLOPS_SOURCES = {
    "shape": "the model's shape",
    "config": "the model's config.json",
    "arguments": "the config.json that the job's arguments name",
    "flops_per_step": "FLOPs of a step as configured",
    "log": "the training log",
    "hlo": "the job's dumped HLO, with recomputation",
}


def report_of_summary(job: JobSummary, source: str, series: Mapping[str, Any] | None = None) -> Report:
    """Everything that a summary says of one job; `source` is where the summary came from.

    `series` are its steps, as columns of schema perfd.series/1, which become charts.
    """
    bottleneck = job.bottleneck
    return Report(
        title=f"How job {job.name} runs",
        subtitle=_subtitle(job, source),
        headline=f"{bottleneck.headline}.",
        summary=_sentences(job),
        metrics=_metrics(job, source),
        findings=[ReportFinding.of(found) for found in (bottleneck, *job.others)],
        figures=[*_step_lines(series, source), *_figures(job, source)],
        tables=[
            *_dimension_tables(job, source),
            *_gpu_tables(job, source),
            *_stage_tables(job, source),
            *_bandwidth_tables(job, source),
            *_fault_tables(job, source),
        ],
        notes=[*filter(None, [job.past.restarts_sentence]), *(_alert(alert) for alert in job.alerts)],
    )


def _subtitle(job: JobSummary, source: str) -> str:
    sizes = [
        f"{name.upper()} {value}"
        for name in ("tp", "pp", "dp", "cp", "ep")
        if (value := getattr(job.parallel, name)) not in {None, 1}
    ]
    world = f"{job.parallel.world_size} ranks" if job.parallel.world_size else "an unknown number of ranks"
    what = f"{job.framework or 'Unknown framework'} on {world}"
    return f"{', '.join([what, *sizes])}; {source}"


def _sentences(job: JobSummary) -> list[str]:
    sentences = list(job.bottleneck.evidence[:2])
    speed = job.efficiency
    if speed.mfu_ratio is not None and not any(sentence.startswith("MFU") for sentence in sentences):
        sentences.append(
            f"MFU is {percent(speed.mfu_ratio)} of the {speed.peak_precision or ''} peak"
            f"{' (unverified)' if speed.peak_unverified else ''}"
            f" at {duration(job.step_time_s.median)} per {job.steps.one}."
        )
    if job.bottleneck.advice:
        sentences.append(f"First: {job.bottleneck.advice}")
    return sentences


def _metrics(job: JobSummary, source: str) -> list[ReportMetric]:
    without = job.communication.left_out
    left_out = f", not counting {', '.join(without)}" if without else ""
    communication = f"{source}; {job.communication.source}{left_out}"
    exposed = f"{source}; {job.communication.exposed_source}{left_out}"
    speed, convention = job.efficiency, job.efficiency.flops_convention or "unknown"
    counted = f"{source}; {_FLOPS_SOURCES.get(speed.mfu_source or '', 'source unknown')}"
    of_peak = counted if speed.precision_by_hlo is None else f"{counted}; peak by {speed.precision_by_hlo}"
    device = "GPU" if job.gpus else "rank"
    steady = f"{job.steps.steady_count} steady of {job.steps.count} steps"
    over = f"{source}; median over {steady}"
    best = attainable_mfu(speed.mfu_ratio, job.bottleneck.gain_ratio)
    rows = (
        ("Step time", duration(job.step_time_s.median), over),
        ("Step time p95", duration(job.step_time_s.p95), f"{source}; over {steady}"),
        ("MFU", percent(speed.mfu_ratio), of_peak),
        ("MFU tier", speed.mfu_tier.word if speed.mfu_tier else UNKNOWN, counted),
        ("Attainable MFU", percent(best), f"{source}; without the first finding's cost"),
        ("HFU", percent(speed.hfu_ratio), f"{source}; convention {convention}"),
        ("Tokens/s", count(speed.tokens_per_s), over),
        (f"FLOP/s per {device}", flops_per_s(speed.model_flops_per_s_per_gpu), counted),
        ("Tensor cores active", percent(speed.tensor_active_ratio), f"{source}; GPU counters"),
        ("Communication", percent(job.communication.share_ratio), communication),
        ("Exposed communication", percent(job.communication.exposed_ratio), exposed),
        ("Pipeline stall", percent(job.pipeline.stall_ratio), f"{source}; {job.pipeline.source}"),
        ("Bubble by theory", percent(job.pipeline.bubble_theory_ratio or None), f"{source}; the schedule"),
        ("Data loading", percent(job.data.share_ratio), f"{source}; {job.data.source}"),
        ("Optimizer", percent(job.optimizer.share_ratio), f"{source}; {job.optimizer.source}"),
        ("Memory, fullest GPU", percent(job.memory.max_used_ratio), f"{source}; {job.memory.source}"),
        ("Goodput", percent(job.goodput_ratio), f"{source}; steps against wall time"),
    )  # fmt: skip
    return [
        ReportMetric(name=name, value=value, source=where) for name, value, where in rows if value != UNKNOWN
    ]


def _step_lines(series: Mapping[str, Any] | None, source: str) -> list[StepLine]:
    if series is None or len(series.get("step", ())) < _LEAST_STEPS:
        return []
    return [
        StepLine(
            title=title,
            source=f"{source}; {len(series['step'])} points, the axis fits steady steps",
            unit=unit,
            steps=series["step"],
            values=series[column],
            steady=series["steady"],
        )
        for column, title, unit in (("mfu_ratio", "MFU", "ratio"), ("step_time_s", "Step time", "s"))
        if any(value is not None for value in series.get(column, ()))
    ]


def _figures(job: JobSummary, source: str) -> list[Bars]:
    stages = [stage for stage in job.pipeline.stages if stage.stall_ratio is not None]
    if not stages:
        return []
    return [
        Bars(
            title="How each stage of the pipeline spends its window",
            source=f"{source}; {job.pipeline.source}",
            labels=[_stage_name(stage) for stage in stages],
            rows=[
                [
                    BarSegment(kind="compute", ratio=max(0.0, 1 - (stage.stall_ratio or 0.0))),
                    BarSegment(kind="idle", ratio=min(1.0, stage.stall_ratio or 0.0)),
                ]
                for stage in stages
            ],
        )
    ]


def _stage_name(stage: Stage) -> str:
    return f"{_stage(stage)} stage" if stage.stage is None else f"stage {stage.stage}"


def _stage(stage: Stage) -> str:
    """Its number, or its bound if the timers only have the fastest and the slowest."""
    return _BOUNDS.get(stage.bound or "", UNKNOWN) if stage.stage is None else str(stage.stage)


def _alert(alert: Alert) -> str:
    at = "" if alert.first_step is None else f" step {alert.first_step}"
    if alert.state == "firing":
        return f"Alert {alert.name} fires{at and f' since{at}'}."
    return f"Alert {alert.name} fired{at and f' at{at}'} and is {alert.state}."


def _dimension_tables(job: JobSummary, source: str) -> list[ReportTable]:
    dimensions = job.communication.dimensions
    if not dimensions:
        return []
    return [
        ReportTable(
            title="Communication by parallel dimension",
            source=f"{source}; shares of a step, exposed: with no computation beside it",
            columns=("dimension", "share by", "exposed by", "share", "moves data", "waits", "exposed"),
            rows=[
                (
                    one.group or "others",
                    one.source,
                    one.exposed_source or f"unknown: {one.missing}",
                    percent(one.share_ratio),
                    percent(one.transfer_ratio),
                    percent(one.wait_ratio),
                    percent(one.exposed_ratio),
                )
                for one in dimensions
            ],
            text_columns=3,
            shares=[one.share_ratio for one in dimensions],
        )
    ]


def _gpu_tables(job: JobSummary, source: str) -> list[ReportTable]:
    if not job.gpus:
        return []
    return [
        ReportTable(
            title="GPUs",
            source=f"{source}; GPU counters, medians over steady steps",
            columns=("GPU", "rank", "SM active", "tensor active", "DRAM active", "power"),
            rows=[
                (
                    f"{gpu.node}/{gpu.gpu}",
                    UNKNOWN if gpu.rank is None else str(gpu.rank),
                    percent(gpu.sm_active_ratio),
                    percent(gpu.tensor_active_ratio),
                    percent(gpu.dram_active_ratio),
                    power(gpu.power_w),
                )
                for gpu in job.gpus
            ],
            shares=[gpu.sm_active_ratio or 0.0 for gpu in job.gpus],
        )
    ]


def _stage_tables(job: JobSummary, source: str) -> list[ReportTable]:
    if not job.pipeline.stages:
        return []
    return [
        ReportTable(
            title="Stages of the pipeline",
            source=f"{source}; {job.pipeline.source}",
            columns=("stage", "stall", "computes", "imbalance"),
            rows=[
                (
                    _stage(stage),
                    percent(stage.stall_ratio),
                    duration(stage.compute_s),
                    percent(stage.imbalance_ratio),
                )
                for stage in job.pipeline.stages
            ],
        )
    ]


def _fault_tables(job: JobSummary, source: str) -> list[ReportTable]:
    if not job.past.faults:
        return []
    return [
        ReportTable(
            title="Faults while the job ran",
            source=f"{source}; findings of each round, the oldest first",
            columns=("fault", "when", "cost"),
            rows=[(fault.headline, fault.period, fault.cost) for fault in job.past.faults],
            text_columns=3,
            shares=[fault.gain_ratio or 0.0 for fault in job.past.faults],
        )
    ]


def _bandwidth_tables(job: JobSummary, source: str) -> list[ReportTable]:
    kinds = busiest(job.nccl.kinds)
    if not kinds:
        return []
    return [
        ReportTable(
            title="NCCL's transfers beside what their links allow",
            source=f"{source}; {job.nccl.source}; transfer is the median of all messages, size and bus"
            " bandwidth are those of messages of 64 KiB or more, if any",
            columns=("group", "operation", "transfer", "size", "bus", "expected", "limit", "links"),
            rows=[
                (
                    kind.group or "other",
                    kind.operation,
                    duration(kind.transfer_s),
                    data_size(kind.size_bytes),
                    bandwidth(kind.bus_bytes_per_s),
                    bandwidth(kind.expected_bus_bytes_per_s),
                    _LIMITS[kind.latency_bound],
                    kind.expected_source or UNKNOWN,
                )
                for kind in kinds
            ],
            text_columns=2,
        )
    ]
