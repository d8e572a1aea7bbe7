"""What is known of a job besides its traces; most captures are analyzed without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfd.analysis.diagnosis import JobSummary
from perfd.gpu_peaks import load_peaks
from perfd.report.comparison import one_job, read_summary
from perfd.trace.diagnosis import DEFAULT_PRECISION, TraceSettings


def settings_of(
    *,
    named: Path | None,
    beside: Path | None,
    peaks: Path | None,
    model_flops_per_step: float | None,
    gpus: int | None,
    precision: str | None,
) -> TraceSettings:
    """What MFU needs: a summary, named or next to the traces, and the table of GPU peaks."""
    job = _job(named, beside)
    given = TraceSettings(
        model_flops_per_step=model_flops_per_step,
        gpus=gpus,
        precision=precision or DEFAULT_PRECISION,
        peaks=load_peaks(peaks),
    )
    if job is None:
        return given
    return replace(
        given,
        model_flops_per_s_per_gpu=job.efficiency.model_flops_per_s_per_gpu,
        step_time_s=job.step_time_s.median,
        precision=precision or job.efficiency.peak_precision or DEFAULT_PRECISION,
    )


def _job(named: Path | None, beside: Path | None) -> JobSummary | None:
    """The job that a summary describes; a summary that was not named must describe exactly one."""
    if named:
        return one_job(read_summary(named), None, str(named))
    jobs = read_summary(beside) if beside else []
    return jobs[0] if len(jobs) == 1 else None
