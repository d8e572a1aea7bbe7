"""Whether ranks are one job's alone, and have their GPUs to themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.analysis.data.job_data import JobData
from perfd.model import EventKind

_STILL_SEEN_S = 60.0
"""So long after two jobs under one name are one again, operations of both may be among the newest. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpus:
    """What runs beside a job."""

    doubled: str = ""
    """What was said of two jobs under its name, whose ranks have the same numbers; empty if none."""
    on_same_gpus: bool = False
    """Whether these two are on the same GPUs."""
    jobs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By rank, the other jobs on its GPU."""


def shared_gpus(job: JobData) -> SharedGpus:
    """By what agents said of ranks that are two processes, and by where other jobs are placed."""
    said = [event for event in job.events if event.kind is EventKind.RANKS_DOUBLED]
    doubled = [event for event in said if event.values.get("ranks")]
    if not doubled or (said[-1] not in doubled and _over_for_s(job, said[-1].time_unix_ns) > _STILL_SEEN_S):
        return SharedGpus(jobs=job.gpu_sharers)
    return SharedGpus(
        doubled=doubled[-1].message,
        on_same_gpus=bool(doubled[-1].values.get("on_same_gpus")),
        jobs=job.gpu_sharers,
    )


def _over_for_s(job: JobData, since_unix_ns: int) -> float:
    return job.now_unix_s - since_unix_ns / 1e9
