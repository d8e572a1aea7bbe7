"""Which jobs each reporter was first to report: the one of most is known without a look at all jobs."""

from __future__ import annotations

from collections.abc import Collection

from perfd.aggregator.jobs.job_state import JobState


class FirstReporters:
    """Jobs by those who reported them first; a change costs the same however many there are."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, JobState]] = {}
        self._of: dict[str, str] = {}
        """The reporter of each job."""
        self._by_size: dict[int, dict[str, None]] = {}
        """Reporters by how many jobs they have, in the order in which they got there."""

    def add(self, who: str, job: JobState) -> None:
        """Know a new job."""
        jobs = self._jobs.setdefault(who, {})
        self._resize(who, len(jobs), len(jobs) + 1)
        jobs[job.name] = job
        self._of[job.name] = who

    def remove(self, name: str) -> None:
        """Forget a job."""
        who = self._of.pop(name)
        jobs = self._jobs[who]
        self._resize(who, len(jobs), len(jobs) - 1)
        del jobs[name]
        if not jobs:
            del self._jobs[who]

    def jobs(self, who: str) -> Collection[JobState]:
        """The jobs that someone reported first."""
        return self._jobs.get(who, {}).values()

    def with_most(self) -> str:
        """The reporter of most jobs, of several the first; raises `ValueError` without a job."""
        # Few sizes occur: n of them need n (n + 1) / 2 jobs.
        return next(iter(self._by_size[max(self._by_size)]))

    def _resize(self, who: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][who]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[who] = None
