"""What history keeps of the records of batches."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.aggregator.jobs import JobState, RecordSource
from perfd.model import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """One record that history keeps, with the place it has there."""

    node: str
    job: str
    attempt: int
    record: Record
    time_unix_s: float


def durable_record(record: Record, source: RecordSource, job: JobState | None = None) -> Durable:
    """A record as history keeps it, with the newest attempt of its job."""
    return Durable(
        node=source.node,
        job=job.name if job else "",
        attempt=job.attempts.number if job else 0,
        record=record,
        time_unix_s=source.sent_unix_s,
    )
