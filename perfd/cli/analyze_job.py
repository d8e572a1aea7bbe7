"""What is known of a job beside its traces; a module of its own, as most captures are analysed without."""

from __future__ import annotations

from pathlib import Path

from perfd.analysis.summary import JobSummary
from perfd.peaks import load_peaks
from perfd.report.summaries import one_job, read_summary
from perfd.trace.analysis import TraceSettings


def settings_of(
    *,
    named: Path | None,
    beside: Path | None,
    peaks: Path | None,
    model_flops_per_step: float | None,
    gpus: int | None,
    precision: str,
) -> TraceSettings:
    """What MFU needs: of a summary that was named or lies beside the traces, and the table of peaks."""
    job = _job(named, beside)
    return TraceSettings(
        model_flops_per_step=model_flops_per_step,
        model_flops_per_s_per_gpu=job.model_flops_per_s_per_gpu if job else None,
        step_time_s=job.step_time_s.median if job else None,
        gpus=gpus,
        precision=precision,
        peaks=load_peaks(peaks),
    )


def _job(named: Path | None, beside: Path | None) -> JobSummary | None:
    """The job that a summary describes; one that merely lies there must describe one job to be used."""
    if named:
        return one_job(read_summary(named), None, str(named))
    jobs = read_summary(beside) if beside else []
    return jobs[0] if len(jobs) == 1 else None
