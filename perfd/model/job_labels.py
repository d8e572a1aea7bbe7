"""The labels that identify a job, and its owner, on every series and alert about it."""

from __future__ import annotations

from perfd.model.job_origin import JobOrigin

JOB_LABEL = "perfd_job"
"""The name by which the aggregator knows the job; Prometheus uses `job` for the scrape itself."""
JOB_LABELS = ("cluster", "namespace", JOB_LABEL)
"""They identify a job over several aggregators: rules join on all of them."""
OWNER_LABELS = ("user", "account", "partition")
"""Whose it is, where the scheduler says; the same for all series of a job."""
_MOST_CHARS = 128
"""Of what a scheduler or a pod says: the job's own name, which is bounded elsewhere, is never cut."""


def job_labels(job: str, origin: JobOrigin | None = None) -> dict[str, str]:
    """The labels of a job by its name and what is known of its origin; unknown ones are left out."""
    labels = {JOB_LABEL: job}
    if origin is not None:
        labels |= {
            "cluster": origin.cluster,
            "namespace": origin.namespace,
            "user": origin.user or origin.owner,
            "account": origin.account,
            "partition": origin.partition,
        }
    return {
        label: text[:_MOST_CHARS] if label != JOB_LABEL else text for label, text in labels.items() if text
    }
