"""A job at one instant, in a line."""

from dataclasses import replace
from functools import cache

from analysis.jobs import job_data, step_table

from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.steps import Efficiency
from perfd.exporters.exporter import JobRound


def job_round(
    step,
    *,
    name="llm",
    attempt=1,
    ended=False,
    loss=None,
    learning_rate=None,
    outcome=None,
    labels=None,
    title="",
    **efficiency,
):
    """A job of steps of one second; what else is known of its efficiency is given by name."""
    found = replace(_summary(), name=name, efficiency=Efficiency(**efficiency))
    return JobRound(
        summary=found,
        labels={"perfd_job": name} if labels is None else labels,
        title=title,
        outcome=outcome,
        step=step,
        attempt=attempt,
        ended=ended,
        loss=loss,
        learning_rate=learning_rate,
    )


@cache
def _summary():
    return summarise(job_data(step_table([1.0] * 30)), AnalysisSettings())
