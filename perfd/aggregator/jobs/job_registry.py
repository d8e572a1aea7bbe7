"""All jobs: which there are, how nodes call them, and which nodes may report them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.jobs.first_reporters import FirstReporters
from perfd.aggregator.jobs.job_names import JobNames, candidates
from perfd.aggregator.jobs.job_ownership import JobOwnership
from perfd.aggregator.jobs.job_state import JobState
from perfd.aggregator.jobs.record_source import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.errors import RefusedError
from perfd.model import JobOrigin, job_labels


class JobRegistry(Mapping[str, JobState]):
    """All jobs, by name; bounded, and an owner with many jobs gives way to one with few."""

    def __init__(
        self,
        limits: Limits,
        counters: AggregatorCounters,
        audit: AuditLog,
        any_job: Collection[str],
        forgotten: Callable[[str], None],
    ) -> None:
        """Nodes in `any_job` may report every job; `forgotten` is called with the name of each that goes."""
        self.names = JobNames()
        self._jobs: dict[str, JobState] = {}
        self._by_owner = FirstReporters()
        """By whose job slot each takes: a namespace, or the node that reported it first."""
        self._by_node = FirstReporters()
        self._on_node: dict[str, dict[str, JobState]] = {}
        """By node, the jobs that it reports."""
        self._refused = False
        """Whether the newest job was refused because all slots were taken."""
        self._limits = limits
        self._counters = counters
        self._audit = audit
        self._any_job = frozenset(any_job)
        self._forgotten = forgotten

    def __getitem__(self, name: str) -> JobState:
        return self._jobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def problem(self) -> str | None:
        """Why new jobs are left out, in a sentence; None while there is room."""
        if not self._refused:
            return None
        return (
            f"New jobs are left out: the aggregator holds {len(self._jobs)}, as many as `max_jobs` allows."
            " Raise it in the configuration, or wait until some are forgotten."
        )

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of series about a job, which may be gone; none for the empty name."""
        job = self._jobs.get(name)
        return job.labels if job is not None else job_labels(name)

    def reported(self, name: str, source: RecordSource) -> JobState | None:
        """The job that a source reports, made when it is new; None when there are too many.

        Raises `RefusedError` if the node is surely none of the job's.
        """
        job = self._jobs.get(name)
        if job is None:
            if (bound := self._full(name, source)) is not None:
                self._counters.rejected[bound] += 1
                self._refused |= bound == "jobs"
                return None
            ownership = JobOwnership(self._any_job)
            job = self._jobs[name] = JobState(name, self._limits, self._counters, ownership)
            self._by_owner.add(_owner_of(source), job)
            self._by_node.add(source.node, job)
        if job.ownership.excludes(source.node, source.namespace):
            if not is_vacant(job, source):
                raise RefusedError("A node reported a job that is not its own.")
            job.ownership.vacate()
        return job

    def name_of(self, origin: JobOrigin, source: RecordSource) -> str | None:
        """The name of the job of this origin, maybe a new one; None when there is none left.

        From now on the node means that job.
        """
        name = self.names.key(origin.job, source.node)
        current = self._jobs.get(name)
        if current is not None and not current.ended and current.ownership.admits(source.node):
            # What is of a job stays of it: its log and its ranks may be those of different users.
            return name
        known = {name: self._jobs[name].ownership.origin for name in candidates(origin) if name in self._jobs}
        return self.names.assign(origin, source.node, known)

    def touched(self, job: JobState, source: RecordSource) -> None:
        """Note that a node reported a job of these."""
        job.touch(source)
        if source.node in job.nodes:
            self._on_node.setdefault(source.node, {})[job.name] = job

    def left(self, job: JobState, node: str) -> None:
        """Note that a node is none of a job's any more."""
        del job.nodes[node]
        self._forget_on(node, job.name)

    def only_on(self, node: str) -> str | None:
        """The one job that a node reports; None without one or with several."""
        jobs = self._on_node.get(node, {}).values()
        chosen = [job for job in jobs if not job.ended] or [*jobs]
        return chosen[0].name if len(chosen) == 1 else None

    def forget(self, name: str) -> None:
        """Drop a job."""
        for node in self._jobs.pop(name).nodes:
            self._forget_on(node, name)
        self._by_owner.remove(name)
        self._by_node.remove(name)
        self._refused = False
        self.names.forget(name)
        self._forgotten(name)

    def _forget_on(self, node: str, name: str) -> None:
        del self._on_node[node][name]
        if not self._on_node[node]:
            del self._on_node[node]

    def _full(self, name: str, source: RecordSource) -> str | None:
        """The bound that refuses a new job, or None."""
        if not 0 < len(name) <= self._limits.name_chars:
            return "name_chars"
        # One node that makes up jobs must not take the place of all others'.
        own = self._by_node.jobs(source.node)
        if (
            sum(not job.ended and job.nodes.keys() == {source.node} for job in own)
            >= self._limits.jobs_per_node
        ):
            return "jobs_per_node"
        return None if len(self._jobs) < self._limits.jobs or self._make_room(_owner_of(source)) else "jobs"

    def _make_room(self, owner: str) -> bool:
        """Forget a job of the owner who has most, unless `owner` would then have as many."""
        greediest = self._by_owner.with_most()
        theirs = self._by_owner.jobs(greediest)
        if len(theirs) <= len(self._by_owner.jobs(owner)) + 1:
            return False
        # Of its jobs the least that is lost: one that ended, and that was silent for longest.
        gone = min(theirs, key=lambda job: (not job.ended, job.received_s))
        self._audit.refused(
            Refusal.JOB_QUOTA,
            "A job of the owner with most jobs is forgotten, to make room for that of another owner.",
            actor=greediest,
            about=gone.name,
        )
        self.forget(gone.name)
        return True


def as_member(job: JobState, source: RecordSource) -> RecordSource:
    """The source, marked where its node is none of the job's."""
    if job.ownership.admits(source.node) or is_vacant(job, source):
        job.ownership.joins(source.node)
        return source
    return replace(source, member=False)


def is_vacant(job: JobState, source: RecordSource) -> bool:
    """Whether any node may start the job again: it ended, or no node that runs it is left."""
    return job.ended or job.ownership.silent(job.nodes, source.now_s)


def _owner_of(source: RecordSource) -> str:
    return source.node if source.namespace is None else source.namespace
