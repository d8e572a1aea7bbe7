"""What a job's run in MLflow says of it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from perfd.analysis.diagnosis import JobSummary
from perfd.exporters.exporter import JobRound
from perfd.exporters.mlflow.mlflow_client import KEY_TAG
from perfd.model import JobOutcome

_MAX_NAME, _MAX_TAG, _MAX_PARAM = 250, 5_000, 500
"""Characters that every MLflow since 1.28 takes of a run's name, a tag and a parameter."""
_STATUS = {
    JobOutcome.FAILED: "FAILED",
    JobOutcome.SIGNAL: "FAILED",
    JobOutcome.OUT_OF_MEMORY: "FAILED",
    JobOutcome.NODE_FAILURE: "FAILED",
    JobOutcome.CANCELLED: "KILLED",
    JobOutcome.PREEMPTED: "KILLED",
    JobOutcome.TIME_LIMIT: "KILLED",
}


def run_name(job: JobRound) -> str:
    """What the job's user calls it, with the scheduler's name, which is unique."""
    name, title = job.summary.name, job.title
    return _cut(f"{title} {name}" if title and title not in name else name, _MAX_NAME)


def run_key(job: JobRound) -> str:
    """The same for the same attempt of the same job, in every aggregator."""
    labels = [job.labels.get(label, "") for label in ("cluster", "namespace")]
    text = "\0".join([*labels, job.summary.name, str(job.attempt)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def run_tags(job: JobRound, tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of a new run; `tags` are the configuration's."""
    found = {f"perfd.{label.removeprefix('perfd_')}": value for label, value in job.labels.items()}
    found |= {"perfd.attempt": str(job.attempt), KEY_TAG: run_key(job), "mlflow.source.name": "perfd"}
    if user := job.labels.get("user"):
        found["mlflow.user"] = user
    return {key: _cut(value, _MAX_TAG) for key, value in {**tags, **found}.items()}


def run_params(summary: JobSummary) -> dict[str, str]:
    """What does not change while a job runs, and is known."""
    layout = msgspec.to_builtins(summary.parallel)
    known = {"framework": summary.framework, **layout}
    return {
        f"perfd.{name}": _cut(str(value), _MAX_PARAM) for name, value in known.items() if value is not None
    }


def final_tags(summary: JobSummary, outcome: JobOutcome | None) -> dict[str, str]:
    """How the job ran, and how it ended; MLflow shows the note as the run's description."""
    first = summary.bottleneck
    lines = [f"**{first.headline}**", *first.evidence, *([first.advice] if first.advice else [])]
    found = {"perfd.bottleneck": first.headline, "mlflow.note.content": "\n\n".join(lines)}
    if outcome is not None:
        found["perfd.outcome"] = outcome.value
    if summary.alerts:
        found["perfd.alerts"] = ", ".join(sorted({alert.name for alert in summary.alerts}))
    return {key: _cut(value, _MAX_TAG) for key, value in found.items()}


def run_status(outcome: JobOutcome | None) -> str:
    """MLflow's word for the end of a run."""
    return "FINISHED" if outcome is None else _STATUS.get(outcome, "FINISHED")


def _cut(text: str, most: int) -> str:
    # A lone surrogate has no UTF-8.
    return text.encode("utf-8", "replace").decode()[:most]
