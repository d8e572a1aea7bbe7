"""What shows a job's steps to the analysis: lines of its log, operations, or both where lines are rare."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from perfd.aggregator.jobs.job_state import JobState
from perfd.analysis.data.job_data import OperationPace, StepTable

_STOPPED_LINES, _STOPPED_S = 3, 30.0
"""After the newest step that operations show: these are not only late, but show steps no more. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSteps:
    """A job's steps, as finely as they are known."""

    steps: StepTable
    pace: OperationPace | None
    """Which operations show the newest ones; None where only a log does, or nothing."""


def shown_steps(job: JobState, *, from_begin: bool = False) -> ShownSteps:
    """The steps of a job by its log, and one by one by its operations where a line covers several.

    Before the first step that operations show there are none, or with `from_begin` those lines: live numbers
    are not to compare lines, which are means, with steps.
    """
    lines = job.step_table()
    if job.operation_pace is not None:
        return ShownSteps(steps=lines, pace=job.operation_pace)
    within = job.operation_steps.within(lines)
    if within is not None and not _have_stopped(lines, within.steps):
        return ShownSteps(steps=_joined(lines, within.steps, from_begin=from_begin), pace=within.pace)
    return ShownSteps(steps=lines, pace=None)


def _have_stopped(lines: StepTable, rows: StepTable) -> bool:
    """Whether operations have shown no step for so long that the log knows better."""
    later = lines.time_unix_s[lines.step - lines.steps_covered >= rows.step[-1]]
    return len(later) >= _STOPPED_LINES and bool(later[-1] - rows.time_unix_s[-1] > _STOPPED_S)


def _joined(lines: StepTable, rows: StepTable, *, from_begin: bool) -> StepTable:
    """Rows of single steps with what lines say of them."""
    at = np.minimum(np.searchsorted(lines.step, rows.step), len(lines) - 1)
    covered = (rows.step <= lines.step[at]) & (rows.step > (lines.step - lines.steps_covered)[at])
    its_own = rows.step == lines.step[at]
    rows = replace(
        rows,
        flops_per_s_per_gpu=np.where(covered, lines.flops_per_s_per_gpu[at], np.nan),
        tokens_per_s=np.where(covered, lines.tokens_per_s[at], np.nan),
        samples_per_s=np.where(covered, lines.samples_per_s[at], np.nan),
        global_batch_size=np.where(covered, lines.global_batch_size[at], np.nan),
        loss=np.where(its_own, lines.loss[at], np.nan),
        learning_rate=np.where(its_own, lines.learning_rate[at], np.nan),
    )
    earlier = from_begin & (lines.step <= rows.step[0] - rows.steps_covered[0])
    parts = (lines.rows(earlier), rows)
    return StepTable(
        **{one.name: np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(StepTable)}
    )
