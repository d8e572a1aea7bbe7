"""Which nodes and ranks are of which job, as origins, placements and events say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfd.aggregator.jobs import JobRegistry, JobState, RecordSource, as_member
from perfd.aggregator.state.durable_records import Durable, durable_record
from perfd.aggregator.state.gpu_owners import gpu_owners
from perfd.aggregator.state.node_state import NodeState
from perfd.errors import RefusedError
from perfd.model import Event, EventKind, JobOrigin, RankPlacement

_DECISIVE = {EventKind.JOB_STARTED, EventKind.JOB_ENDED, EventKind.RESTARTED}


class JobMembers:
    """Takes the records that say which nodes and ranks a job has. Raises `RefusedError` for a stranger's."""

    def __init__(self, nodes: Mapping[str, NodeState], jobs: JobRegistry) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._batch: tuple[str, float] | None = None
        self._of_batch: dict[tuple[str, int], RankPlacement] = {}

    def job(self, name: str, source: RecordSource) -> JobState | None:
        """The job that a source reports, made when it is new; None when there are too many."""
        job = self._jobs.reported(name, source)
        if job is None:
            return None
        if source.node not in job.nodes:
            self.owners_changed(source.node)
        self._jobs.touched(job, source)
        return job

    def claim(self, origin: JobOrigin, source: RecordSource) -> list[Durable]:
        """Know whose job it is; another owner's job of the same name gets a different name."""
        if source.namespace is not None:
            if origin.namespace not in {"", source.namespace}:
                raise RefusedError("A node named another namespace than its credential does.")
            origin = replace(origin, namespace=source.namespace)
        name = self._jobs.name_of(origin, source)
        job = None if name is None else self.job(name, source)
        if job is None:
            return []
        if not as_member(job, source).member:
            job.ownership.agrees(source.node)
            job.ownership.groups(origin, source.node)
            return []
        before, labels = (job.ownership.origin, dict(job.ownership.het_groups)), job.labels
        if job.ownership.begins_anew(origin) and not source.late:
            job.begins_anew(source.sent_unix_s, source.now_s)
        job.ownership.claims(origin, source.node)
        if job.labels != labels:
            for node in job.nodes:
                self.owners_changed(node)
        same = before == (job.ownership.origin, job.ownership.het_groups)
        return [] if same else [durable_record(origin, source, job)]

    def restore_origin(self, node: str, name: str, origin: JobOrigin) -> None:
        """Know from history which job a node means, and whose it is."""
        self._jobs.names.restore(origin.job, node, name)
        if name in self._jobs:
            self._jobs[name].ownership.claims(origin, node)
            self._jobs[name].ownership.agrees(node)

    def place(self, placement: RankPlacement, node: NodeState, source: RecordSource) -> list[Durable]:
        """Take a rank's place into its node and job; returns what history has to keep."""
        job = self.job(placement.job, source)
        if job is None:
            return []
        before = job.ownership.holder(placement.rank)
        source = as_member(job, source)
        if not job.ownership.places(source.node, placement.rank, source.now_s, placement.world_size):
            raise RefusedError("A node claimed a rank that another node has, or a rank of a job not its own.")
        if before not in {None, source.node} and before in self._nodes:
            self._nodes[before].forget_rank(job.name, placement.rank)
        doubled = _doubled(self._before(placement, source), placement)
        if doubled is not None and all(one.kind is not EventKind.RANKS_DOUBLED for one in job.events):
            job.event(doubled)
        if not source.late:
            started_ns = placement.started_unix_ns
            job.lifetime.ranks_seen(source.agent_id, None if started_ns is None else started_ns / 1e9)
            if started_ns is not None:
                job.rank_started(placement.rank, started_ns / 1e9, source.now_s)
        if not node.place(placement, source.agent_id, source.now_s):
            return []
        job.version += 1
        return [durable_record(placement, source, job)]

    def _before(self, placement: RankPlacement, source: RecordSource) -> RankPlacement | None:
        """The first placement of the same rank in the same batch, if that is another one."""
        batch = source.agent_id, source.sent_unix_s
        if batch != self._batch:
            self._batch = batch
            self._of_batch.clear()
        first = self._of_batch.setdefault((placement.job, placement.rank), placement)
        return None if first is placement else first

    def event(self, event: Event, node: NodeState, source: RecordSource) -> list[Durable]:
        """Take what happened to a job or to hardware; an event without a job is of the node's only one."""
        job = self._job_of_event(event, node, source)
        if job is not None and event.kind in _DECISIVE and not as_member(job, source).member:
            raise RefusedError("A node outside the job reported its start or end.")
        if event.kind is EventKind.HARDWARE_ERROR:
            node.hardware_error(event, job.name if job else "")
        if job is not None:
            job.event(event, source.now_s)
            if event.kind is EventKind.RANKS_GONE:
                node.ranks_gone(job.name)
                job.ownership.ranks_gone(source.node)
                job.lifetime.ranks_gone(source.agent_id, event.time_unix_ns / 1e9, source.now_s)
            if event.kind in {EventKind.JOB_STARTED, EventKind.JOB_ENDED}:
                for name in job.nodes:
                    self.owners_changed(name)
        return [durable_record(event, source, job)]

    def forget_left_nodes(self, job: JobState) -> None:
        """A new start may be on other nodes: those whose agents left are none of its own."""
        for name in [name for name in job.nodes if name in self._nodes and self._nodes[name].left]:
            self._nodes[name].forget_job(job.name)
            self._jobs.left(job, name)

    def owners_changed(self, node: str) -> None:
        """Note that the GPUs of a node serve another job, or none."""
        if node in self._nodes:
            self._nodes[node].version += 1

    def _job_of_event(self, event: Event, node: NodeState, source: RecordSource) -> JobState | None:
        name = event.job
        if name is None and event.gpu is not None:
            owners = gpu_owners(node, self._jobs).get(str(event.gpu), {})
            name = next(iter(owners)) if len(owners) == 1 else None
        if name is None:
            name = self._jobs.only_on(node.name)
        return None if name is None else self.job(name, source)


def _doubled(before: RankPlacement | None, placement: RankPlacement) -> Event | None:
    """That two processes are one rank at once, which agents of other versions do not report themselves."""
    if before is None or None in {before.pid, placement.pid} or before.pid == placement.pid:
        return None
    pids = f"PIDs {before.pid}, {placement.pid}"
    same_gpu = before.gpu is not None and before.gpu == placement.gpu
    return Event(
        kind=EventKind.RANKS_DOUBLED,
        time_unix_ns=placement.started_unix_ns or 0,
        message=f"Two jobs run under this name: {pids} are its rank {placement.rank}.",
        job=placement.job,
        rank=placement.rank,
        values={"ranks": 1.0, "on_same_gpus": float(same_gpu)},
    )
