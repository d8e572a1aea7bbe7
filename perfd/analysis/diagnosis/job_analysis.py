"""Derives everything from what a job reported: the evidence, the findings, and the summary of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfd.analysis.collectives import nccl, with_waiting
from perfd.analysis.communication import capture_evidence, communication, with_capture, with_kernels
from perfd.analysis.data.analysis_settings import AnalysisSettings
from perfd.analysis.data.job_data import Floats, JobData
from perfd.analysis.data.launch_windows import awaits_hosts, never_sleep
from perfd.analysis.data.run_configuration import configuration_of
from perfd.analysis.diagnosis.bottleneck import find_bottlenecks
from perfd.analysis.diagnosis.checklist import checklist
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.diagnosis.job_summary import GpuSummary, JobSummary, StepsSummary
from perfd.analysis.findings import software_of
from perfd.analysis.hang import hang, message_of, troubles, without_steps
from perfd.analysis.layout import LinkSpeeds, data_parallel_link_bytes_per_s, speeds, tensor_groups
from perfd.analysis.steps import (
    ComputeChange,
    EachStep,
    Efficiency,
    GpuActivity,
    SteadySteps,
    StepBreakdown,
    Timers,
    asleep_together,
    breakdown,
    compute_change,
    critical_batch,
    data_loading,
    efficiency,
    goodput_ratio,
    gpu_activity,
    gpu_infos,
    held_clocks,
    idle_since,
    launches_of_training,
    leaves_pace,
    lines_are_means,
    long_steps_cause,
    longer_since,
    longer_steps,
    memory,
    optimizer,
    pipeline,
    rows_of_pace,
    shows_earlier_start,
    sleeping_hosts,
    steady_rows,
    step_time,
    world_size,
)
from perfd.analysis.stragglers import (
    compare_activity,
    computing_more,
    cpu_wait_of_all,
    expert_imbalance,
    host_contention,
    only_reader,
    only_readers,
    periodic_stall,
    reading_rank,
    shared_gpus,
    slowdowns,
    stragglers_by_timers,
    unequal_sequences,
    waiting_pair,
)
from perfd.model import EventKind, GpuColumn, ParallelLayout, StepSource

_LINES = 5
"""Progress lines: if this many have no time of a step, later ones will not."""
_OPERATIONS = 100
"""Of a rank: by then NCCL has reported the time of some."""


def summarise(job: JobData, settings: AnalysisSettings) -> JobSummary:
    """Derive every number of a job at once. Pure: the same data give the same summary."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _summarise(job, settings)


def _summarise(job: JobData, settings: AnalysisSettings) -> JobSummary:
    steady = steady_rows(job.steps, job.events, settings.window_steps)
    activity = _activity(job, steady)
    facts = facts_of(job, settings, steady, activity)
    findings = find_bottlenecks(facts)
    return JobSummary(
        name=job.name,
        framework=job.description.framework if job.description else None,
        parallel=facts.parallel,
        steps=_steps(job, steady, of_earlier_start=facts.of_earlier_start),
        step_time_s=facts.step_time,
        efficiency=facts.efficiency,
        communication=facts.communication,
        nccl=facts.nccl,
        pipeline=facts.pipeline,
        data=facts.data,
        optimizer=facts.optimizer,
        breakdown=facts.breakdown,
        memory=facts.memory,
        goodput_ratio=goodput_ratio(job, steady, facts.step_time.median),
        slowdowns=facts.slowdowns,
        gpus=_gpus(activity),
        capture=facts.capture,
        findings=tuple(findings),
        checklist=checklist(facts),
        troubles=troubles(job.events),
        configuration=configuration_of(job),
    )


def _activity(job: JobData, steady: SteadySteps) -> GpuActivity:
    """What GPUs do in steady steps; on one GPU, or by lines over several steps, at the newest pace.

    What GPUs did before steps last became longer, or shorter, says nothing of such a job now.
    """
    if _by_log_alone(job, steady):
        return gpu_activity(job.gpu, job.steps, rows_of_pace(job.steps, steady.rows), few_samples=True)
    return gpu_activity(job.gpu, job.steps, steady.rows)


def _by_log_alone(job: JobData, steady: SteadySteps) -> bool:
    """Whether no collectives show steps: there is one GPU, or lines are means over several steps."""
    if job.operation_pace is not None:
        return False
    return lines_are_means(job.steps, steady.unmarked) or len(job.gpu.gpus) == 1


def facts_of(
    job: JobData, settings: AnalysisSettings, steady: SteadySteps, activity: GpuActivity
) -> JobEvidence:
    """The evidence, from the steady steps of a job and what its GPUs did in these."""
    description = job.description
    parallel = _with_world(description.parallel if description else ParallelLayout(), job)
    timers = Timers.of(job.phases, job.steps, steady.rows)
    times = job.steps.step_time_s[steady.rows]
    joined = speeds(job, settings.peaks, settings.network_bytes_per_s)
    link = data_parallel_link_bytes_per_s(
        parallel, gpu_infos(job), job, settings.peaks, _slowest(joined, settings)
    )
    by_timers = stragglers_by_timers(timers, times, parallel)
    by_activity = compare_activity(activity, parallel)
    changed = compute_change(timers, job.steps.step[steady.rows], parallel)
    by_phases = pipeline(_since(changed, job, steady), description, {one.rank for one in by_timers})
    job = replace(job, launches=launches_of_training(job))
    of_steps = step_time(job.steps.step_time_s, steady)
    if job.step_doubt is not None:
        # Micro-batches differ by what is done once a step, and rounds by how many steps they are.
        of_steps = replace(of_steps, jitter_ratio=None)
    capture = capture_evidence(job, of_steps.median)
    kernels = nccl(job, parallel, step_s=of_steps.median, speeds=joined)
    seen = with_kernels(communication(timers, times, description, link), kernels, description)
    each = _each_step(job, steady)
    pace_is_known = not (lines_are_means(job.steps, steady.unmarked) and leaves_pace(job.steps, steady))
    longer = longer_steps(job.gpu, each.steps, each.unmarked)
    reached = _efficiency(job, settings, steady, activity)
    return JobEvidence(
        parallel=parallel,
        description=description,
        step_source=job.step_source,
        step_time_source="log" if each.pace is None else "NCCL operations",
        step_doubt=job.step_doubt,
        software=software_of(
            description.framework if description else None,
            description.arguments if description else {},
            (kind.operation for kind in kernels.kinds),
        ),
        tensor_groups=tensor_groups(job, parallel),
        efficiency=reached,
        batch=critical_batch(job, settings.peaks, reached.peak_precision, reached.peak_flops_per_s),
        communication=with_capture(seen, kernels, capture, parallel),
        nccl=kernels,
        pipeline=with_waiting(by_phases, parallel, kernels, of_steps.median),
        data=data_loading(timers, times, parallel),
        optimizer=optimizer(timers, times),
        breakdown=_breakdown(timers, times),
        timers_hold_waiting=timers.hold_waiting,
        waiting_pair=waiting_pair(timers, times),
        memory=memory(job, settings.peaks),
        step_time=of_steps,
        long_steps=long_steps_cause(job, steady),
        steady_steps=int(job.steps.steps_covered[steady.rows].sum()),
        of_earlier_start=shows_earlier_start(job),
        awaits_steps=description is not None and bool(description.framework) and len(job.steps) < _LINES,
        activity=activity,
        slowdowns=slowdowns(timers, kernels, parallel),
        stragglers_by_timers=by_timers,
        stragglers_by_activity=by_activity.stragglers,
        activity_undecided=by_activity.undecided,
        idle_ratio=by_activity.idle_ratio,
        pace_is_known=pace_is_known,
        busier_ratio=by_activity.busier_ratio,
        held_clocks=held_clocks(job, activity),
        sequences=unequal_sequences(timers, times, parallel),
        experts=expert_imbalance(activity, parallel, longer),
        change=changed,
        longer_steps=longer,
        longer_since=longer_since(each.steps, each.unmarked),
        only_reader=only_reader(parallel, job.launches),
        reading=reading_rank(kernels.slow_since, job, parallel, longer),
        idle_since=idle_since(job, activity.kernel_metric),
        sleeping=sleeping_hosts(job, each, activity, longer, parallel.world_size, lasts=pace_is_known),
        hosts_seen=job.launches is not None,
        hosts_may_limit=not job.gpu.gpus and never_sleep(job.launches),
        awaits_hosts=awaits_hosts(job.launches, _trained_s(job, of_steps.median)),
        readers=only_readers(kernels.roots, job.launches),
        computing_more=computing_more(job.gpu),
        asleep_together=asleep_together(job.launches, activity, parallel.world_size),
        stall=periodic_stall(each.steps, each.unmarked, job.collectives, parallel),
        contention=host_contention(job.host_waits),
        cpu_wait_of_all=cpu_wait_of_all(job.host_waits),
        shared=shared_gpus(job),
        hang=hang(job),
        without_steps=without_steps(job),
        capture=capture,
        silent_gpu_ranks=_silent_gpu_ranks(activity, parallel),
        transport_remarks=_transport_remarks(job),
        untimed=_untimed(job),
        wrong_times=_wrong_times(job),
        nodes=len({key.node for key in activity.gpus}),
        nccl_may_use_pcie=parallel.world_size != 1
        and any(key.node not in joined.inside_bytes_per_s for key in activity.gpus),
        gpu_seen=bool(gpu_infos(job) or activity.gpus),
    )


def _trained_s(job: JobData, step_s: float | None) -> float:
    """How long all steps took up to the newest; 0 without any."""
    return float(job.steps.step[-1]) * step_s if len(job.steps) and step_s is not None else 0.0


def _each_step(job: JobData, steady: SteadySteps) -> EachStep:
    """All steps by operations where these show them, else the newest lines."""
    steps = job.steps_by_operations
    if steps is None:
        return EachStep(job.steps, steady.rows, steady.every_unmarked, job.operation_pace)
    found = steady_rows(steps, job.events)
    return EachStep(steps, found.rows, found.unmarked, job.operation_pace)


def _since(changed: ComputeChange | None, job: JobData, steady: SteadySteps) -> Timers:
    """Timers of the steps since a stage changed: a median over all would be of another pipeline."""
    rows = steady.rows
    if changed is not None and changed.stage is not None:
        rows = rows[job.steps.step[rows] >= changed.since_step]
    return Timers.of(job.phases, job.steps, rows)


def _slowest(joined: LinkSpeeds, settings: AnalysisSettings) -> float | None:
    """A GPU's share of the network, where it is least; a configured one also holds where no node is known."""
    return settings.network_bytes_per_s or min(joined.network_bytes_per_s.values(), default=None)


def _silent_gpu_ranks(activity: GpuActivity, parallel: ParallelLayout) -> tuple[int, ...]:
    ranks = {key.rank for key in activity.gpus if key.rank is not None}
    if not ranks or not parallel.world_size:
        return ()
    return tuple(rank for rank in range(parallel.world_size) if rank not in ranks)


def _efficiency(
    job: JobData, settings: AnalysisSettings, steady: SteadySteps, activity: GpuActivity
) -> Efficiency:
    return efficiency(
        job,
        steady.rows,
        activity,
        convention=settings.convention,
        peaks=settings.peaks,
        precision=settings.peak_precision,
    )


def _with_world(parallel: ParallelLayout, job: JobData) -> ParallelLayout:
    """A layout that does not say the world's size gets the number of GPUs that are seen."""
    return parallel if parallel.world_size else replace(parallel, world_size=world_size(job))


def _transport_remarks(job: JobData) -> tuple[str, ...]:
    reported = (event.message for event in job.events if event.kind is EventKind.NCCL_WARNING)
    return tuple(dict.fromkeys(message for message in reported if message.startswith("NCCL connects")))


def _breakdown(timers: Timers, step_time_s: Floats) -> StepBreakdown:
    """In phases that hold waiting all ranks take as long: that does not show that they are equal."""
    found = breakdown(timers, step_time_s)
    return replace(found, spread_ratio=None) if timers.hold_waiting else found


def _untimed(job: JobData) -> bool:
    """Not in a job's first moments, in which no operation has ended yet."""
    counted = job.nccl.operations >= _OPERATIONS
    return bool(counted.any() and not np.isfinite(job.nccl.busy_s).any())


def _wrong_times(job: JobData) -> Mapping[str, Sequence[int]]:
    ranks: dict[str, set[int]] = {}
    for event in job.events:
        if event.kind is EventKind.NCCL_TIMES_WRONG and event.rank is not None:
            ranks.setdefault(message_of(event), set()).add(event.rank)
    return {message: sorted(found) for message, found in ranks.items()}


def _steps(job: JobData, steady: SteadySteps, *, of_earlier_start: bool) -> StepsSummary:
    count = len(job.steps)
    return StepsSummary(
        source=job.step_source if job.operation_pace is None else StepSource.NCCL,
        doubt=job.step_doubt,
        count=count,
        steady_count=len(steady.rows),
        steady_steps_count=int(job.steps.steps_covered[steady.rows].sum()),
        first=int(job.steps.step[0]) if count else None,
        last=int(job.steps.step[-1]) if count else None,
        dropped={reason.value: tuple(steps) for reason, steps in steady.dropped.items()},
        of_earlier_start=of_earlier_start,
    )


def _gpus(activity: GpuActivity) -> tuple[GpuSummary, ...]:
    names = (GpuColumn.SM_ACTIVE, GpuColumn.TENSOR_ACTIVE, GpuColumn.DRAM_ACTIVE, GpuColumn.POWER)
    columns = [
        [value if value == value else None for value in activity.of_gpus(name).tolist()]  # noqa: PLR0124 - NaN
        for name in names
    ]
    return tuple(
        GpuSummary(
            node=key.node,
            gpu=key.gpu,
            rank=key.rank,
            sm_active_ratio=sm,
            tensor_active_ratio=tensor,
            dram_active_ratio=dram,
            power_w=power,
        )
        for key, sm, tensor, dram, power in zip(activity.gpus, *columns, strict=True)
    )
