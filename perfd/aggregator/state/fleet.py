"""The state of everything: nodes and jobs, filled by the records of batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.failures import Failures, Part
from perfd.aggregator.jobs import JobState, RecordSource
from perfd.aggregator.jobs.job_names import JobNames
from perfd.aggregator.jobs.job_ownership import JobOwnership
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.limits.bounded_records import bounded
from perfd.aggregator.operations import HOST_COLUMNS
from perfd.aggregator.state.node_state import NodeState
from perfd.errors import RefusedError
from perfd.model import (
    CaptureCancel,
    CaptureRequest,
    CollectiveProgress,
    CollectiveTimes,
    CollectorHealth,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    JobOrigin,
    LogProgress,
    MemoryReport,
    RankColumn,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    ServerInfo,
    StepPhases,
    TrainingStep,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """One record that history keeps, with the place it has there."""

    node: str
    job: str
    attempt: int
    record: Record
    time_unix_s: float


_JobRecord = (
    JobDescription
    | TrainingStep
    | StepPhases
    | MemoryReport
    | LogProgress
    | CollectiveTimes
    | CollectiveProgress
)
_JOB_RECORDS: dict[type, Callable[[JobState, Any, RecordSource], Event | None]] = {
    JobDescription: JobState.describe,
    TrainingStep: JobState.step,
    StepPhases: JobState.step_phases,
    MemoryReport: JobState.memory_report,
    LogProgress: JobState.log_progress,
    CollectiveTimes: JobState.collective_times,
    CollectiveProgress: JobState.collective_progress,
}
_MAX_STEP = 1 << 53
"""Larger ones are garbage, and no double holds them."""
_MOST_RANK_DIGITS = 9
_DECISIVE = {EventKind.JOB_STARTED, EventKind.JOB_ENDED, EventKind.RESTARTED}
_KEPT = (JobDescription, TrainingStep, StepPhases)


class Fleet:
    """Applies batches. Not thread-safe: the aggregator's state lock is held around every call."""

    def __init__(
        self,
        limits: Limits,
        counters: AggregatorCounters,
        failures: Failures | None = None,
        audit: AuditLog | None = None,
        any_job: Collection[str] = (),
    ) -> None:
        """Nodes in `any_job` may report every job."""
        self._failures = failures or Failures()
        self._audit = audit or AuditLog()
        self._any_job = frozenset(any_job)
        self._names = JobNames()
        self.limits = limits
        self.counters = counters
        self.nodes: dict[str, NodeState] = {}
        self.jobs: dict[str, JobState] = {}

    def apply(self, records: Iterable[Record], source: RecordSource) -> list[Durable]:
        """Take the records of one batch; returns what history has to keep, in order.

        A record that cannot be applied is dropped and counted.
        """
        node = self.node(source.node)
        if node is None:
            return []
        node.received_s = source.now_s
        node.comes_back()
        durable: list[Durable] = []
        for record in records:
            self.counters.records += 1
            try:
                if (kept := bounded(record, self.limits, self.counters.rejected)) is not None:
                    durable += self._apply(self._names.renamed(kept, source.node), node, source)
            except RefusedError as refusal:
                self._refuse(str(refusal), record, source)
            except Exception as error:  # noqa: BLE001  (whatever it is, the stream goes on)
                self._failures.note(Part.RECORD, error, node=source.node, record=type(record).__name__)
        return durable

    def again(self, records: Iterable[Record], source: RecordSource) -> list[Durable]:
        """What history has to keep of a batch that was applied before, and that it had no room for then."""
        durable: list[Durable] = []
        for whole in records:
            if (record := bounded(whole, self.limits, self.counters.rejected)) is None:
                continue
            record = self._names.renamed(record, source.node)
            name = record.job if isinstance(record, (*_KEPT, RankPlacement, Event)) else None
            if isinstance(record, Event):
                name = name or self._only_job(source.node)
            job = self.jobs.get(name or "")
            if job is not None and job.ownership.admits(source.node):
                described = job.description if isinstance(record, JobDescription) else None
                durable.append(_durable(described or record, source, job))
            elif isinstance(record, GpuInfo | ServerInfo):
                durable.append(_durable(record, source))
        return durable

    def leave(self, source: RecordSource) -> None:
        """Take in that the agent of a node said goodbye."""
        for job in self.jobs.values():
            job.leave(source.agent_id, source.sent_unix_s, source.now_s)
            job.ownership.leaves(source.node)
        if (node := self.nodes.get(source.node)) is not None:
            node.left = True

    def settle(self, now_s: float) -> list[Durable]:
        """Conclude which jobs are over by now; returns what history has to keep of that."""
        durable: list[Durable] = []
        for job in self.jobs.values():
            exported = job.exported
            event = job.settle(now_s)
            if job.exported != exported:
                for name in job.nodes:
                    self._owners_changed(name)
            if event is not None:
                node, time_unix_s = next(iter(job.nodes), ""), event.time_unix_ns / 1e9
                durable.append(
                    Durable(
                        node=node,
                        job=job.name,
                        attempt=job.attempts.number,
                        record=event,
                        time_unix_s=time_unix_s,
                    )
                )
        return durable

    def node(self, name: str) -> NodeState | None:
        """The node of that name, made when it is new; None when there are too many."""
        node = self.nodes.get(name)
        if node is None:
            if len(self.nodes) >= self.limits.nodes:
                self.counters.rejected["nodes"] += 1
                return None
            node = self.nodes[name] = NodeState(name, self.limits, self.counters)
        return node

    def job(self, name: str, source: RecordSource) -> JobState | None:
        """The job that a source reports, made when it is new; None when there are too many."""
        job = self.jobs.get(name)
        if job is None:
            if (bound := self._no_room_for_job(name, source)) is not None:
                self.counters.rejected[bound] += 1
                return None
            job = self.jobs[name] = JobState(name, self.limits, self.counters, JobOwnership(self._any_job))
            job.first_owner = _owner_of(source)
        if job.ownership.excludes(source.node, source.namespace):
            if not self._vacant(job, source):
                raise RefusedError("A node reported a job that is not its own.")
            job.ownership.vacate()
        if source.node not in job.nodes:
            self._owners_changed(source.node)
        job.touch(source)
        return job

    def addressed(self, node: str, message: CaptureRequest | CaptureCancel) -> CaptureRequest | CaptureCancel:
        """A message with the job's name as the agent of a node has it."""
        if isinstance(message, CaptureCancel):
            return message
        return replace(message, job=self._names.own_name(node, message.job))

    def owners(self, node: NodeState) -> dict[str, tuple[str, int | None]]:
        """For each GPU of a node that serves a job: the job, and the rank when it is known.

        By placements. GPUs without one belong to the node's only job, unless all ranks of that job have
        theirs: the others may run work that perfd does not see.
        """
        owners: dict[str, tuple[str, int | None]] = {
            str(placement.gpu): (job, rank)
            for (job, rank), placement in node.placements.items()
            if placement.gpu is not None
        }
        only = self._only_job(node.name)
        if only is not None and not self._all_placed(only, node):
            for gpu in node.gpu_history.layout.entities.known:
                owners.setdefault(gpu, (only, None))
        return owners

    def exported_owners(self, node: NodeState) -> dict[str, tuple[str, int | None]]:
        """Of `owners`, the jobs that have series."""
        return {gpu: owner for gpu, owner in self.owners(node).items() if self.jobs[owner[0]].exported}

    def _all_placed(self, name: str, node: NodeState) -> bool:
        """Whether all ranks of a job are on this node, and on which of its GPUs is known."""
        placed = [one for (job, _), one in node.placements.items() if job == name and one.gpu is not None]
        job = self.jobs.get(name)
        worlds = [*(one.world_size for one in placed), job.world_size if job is not None else None]
        world = next((world for world in worlds if world), None)
        return world is not None and len(placed) >= world

    def forget(self, now_s: float, after_s: float) -> list[str]:
        """Drop the jobs and nodes that sent nothing for `after_s`; returns the jobs' names."""
        gone = [name for name, job in self.jobs.items() if now_s - job.received_s > after_s]
        for name in gone:
            self._forget_job(name)
        for name in [name for name, node in self.nodes.items() if now_s - node.received_s > after_s]:
            del self.nodes[name]
        return gone

    def _forget_job(self, name: str) -> None:
        del self.jobs[name]
        self._names.forget(name)
        for node in self.nodes.values():
            node.forget_job(name)

    def _refuse(self, sentence: str, record: Record, source: RecordSource) -> None:
        about = getattr(record, "job", None) or ""
        self._audit.refused(Refusal.JOB_OWNER, sentence, actor=source.node, about=about)

    def _of_job(self, job: JobState, source: RecordSource) -> RecordSource:
        """The source, marked where its node is none of the job's."""
        if job.ownership.admits(source.node) or self._vacant(job, source):
            job.ownership.joins(source.node)
            return source
        return replace(source, member=False)

    def _vacant(self, job: JobState, source: RecordSource) -> bool:
        """Whether any node may start the job again: it ended, or no node that runs it is left."""
        return job.ended or job.ownership.silent(job.nodes, source.now_s)

    def _claim(self, origin: JobOrigin, source: RecordSource) -> list[Durable]:
        """Know whose job it is; another owner's job of the same name gets a different name."""
        if source.namespace is not None:
            if origin.namespace not in {"", source.namespace}:
                raise RefusedError("A node named another namespace than its credential does.")
            origin = replace(origin, namespace=source.namespace)
        name: str | None = self._names.key(origin.job, source.node)
        current = self.jobs.get(name or "")
        if current is None or current.ended or not current.ownership.admits(source.node):
            # What is of a job stays of it: its log and its ranks may be those of different users.
            known = {name: job.ownership.origin for name, job in self.jobs.items()}
            name = self._names.assign(origin, source.node, known)
        job = None if name is None else self.job(name, source)
        if job is None:
            return []
        if not self._of_job(job, source).member:
            raise RefusedError("A node that is none of the job's said whose it is.")
        before = job.ownership.origin
        if job.ownership.begins_anew(origin) and not source.late:
            job.begins_anew(source.sent_unix_s)
        job.ownership.claims(origin, source.node)
        return [] if before == job.ownership.origin else [_durable(origin, source, job)]

    def restore_origin(self, node: str, name: str, origin: JobOrigin) -> None:
        """Know from history which job a node means, and whose it is."""
        self._names.restore(origin.job, node, name)
        if name in self.jobs:
            self.jobs[name].ownership.claims(origin, node)

    def _apply(self, record: Record, node: NodeState, source: RecordSource) -> list[Durable]:
        if isinstance(record, SampleTable):
            node.sample(record, source.now_s)
            if record.scope is Scope.RANK:
                self._apply_to_ranks(record, source)
            return []
        if isinstance(record, _JobRecord):
            return self._apply_to_job(record, source)
        if isinstance(record, JobOrigin):
            return self._claim(record, source)
        return self._apply_to_node(record, node, source)

    def _apply_to_ranks(self, table: SampleTable, source: RecordSource) -> None:
        busy_s = table.columns.get(RankColumn.NCCL_BUSY)
        lost = table.columns.get(RankColumn.NCCL_LOST_OPERATIONS)
        begun = table.columns.get(RankColumn.NCCL_OPERATIONS) or [math.nan] * len(table.entities)
        waits = {column: table.columns[column] for column in HOST_COLUMNS if column in table.columns}
        for row, (time_unix_ns, entity) in enumerate(zip(table.times_unix_ns, table.entities, strict=True)):
            name, _, rank = entity.rpartition("/")
            job = self.jobs.get(name)
            if job is None or len(rank) > _MOST_RANK_DIGITS or not rank.isdecimal():
                continue
            time_unix_s = time_unix_ns / 1e9
            # Clocks of nodes may disagree by any amount; how long ago it was by its own one is sure.
            read_s = source.now_s - max(0.0, source.sent_unix_s - time_unix_s)
            if busy_s is not None and lost is not None:
                busy, gone = busy_s[row], lost[row]
                if math.isfinite(gone) and not math.isinf(busy):
                    job.nccl.put(int(rank), time_unix_s, busy, gone, begun[row], read_s=read_s)
            if waits:
                job.host_waits.put(
                    int(rank), {column: values[row] for column, values in waits.items()}, read_s=read_s
                )

    def _apply_to_job(self, record: _JobRecord, source: RecordSource) -> list[Durable]:
        if isinstance(record, TrainingStep | StepPhases) and record.step > _MAX_STEP:
            self.counters.rejected["step_number"] += 1
            return []
        job = self.job(record.job, source)
        if job is None:
            return []
        event = _JOB_RECORDS[type(record)](job, record, self._of_job(job, source))
        durable = [] if event is None else [_durable(event, source, job)]
        if event is not None:
            self._forget_left_nodes(job)
        if isinstance(record, JobDescription):
            # What is known after the merge: history holds one description per attempt.
            durable.append(_durable(job.description or record, source, job))
        elif isinstance(record, _KEPT):
            durable.append(_durable(record, source, job))
        return durable

    def _apply_to_node(self, record: Record, node: NodeState, source: RecordSource) -> list[Durable]:
        if isinstance(record, GpuInfo):
            return [_durable(record, source)] if node.gpu_info(record) else []
        if isinstance(record, ServerInfo):
            return [_durable(record, source)] if node.server_info(record) else []
        if isinstance(record, RankPlacement):
            return self._place(record, node, source)
        if isinstance(record, Event):
            return self._apply_event(record, node, source)
        if isinstance(record, CollectorHealth):
            node.collector_health(record)
        return []

    def _place(self, placement: RankPlacement, node: NodeState, source: RecordSource) -> list[Durable]:
        job = self.job(placement.job, source)
        if job is None:
            return []
        before = job.ownership.holder(placement.rank)
        if not job.ownership.places(source.node, placement.rank, source.now_s):
            raise RefusedError("A node reported a rank that runs on another one.")
        if before not in {None, source.node} and before in self.nodes:
            self.nodes[before].forget_rank(job.name, placement.rank)
        if not source.late:
            started_ns = placement.started_unix_ns
            job.lifetime.ranks_seen(source.agent_id, None if started_ns is None else started_ns / 1e9)
            if started_ns is not None:
                job.rank_started(placement.rank, started_ns / 1e9)
        if not node.place(placement):
            return []
        job.version += 1
        return [_durable(placement, source, job)]

    def _apply_event(self, event: Event, node: NodeState, source: RecordSource) -> list[Durable]:
        job = self._job_of_event(event, node, source)
        if job is not None and event.kind in _DECISIVE and not self._of_job(job, source).member:
            raise RefusedError("A node that is none of the job's said that it started or ended.")
        if event.kind is EventKind.HARDWARE_ERROR:
            node.hardware_error(event, job.name if job else "")
        if job is not None:
            job.event(event)
            if event.kind is EventKind.RANKS_GONE:
                job.ownership.ranks_gone(source.node)
                job.lifetime.ranks_gone(source.agent_id, event.time_unix_ns / 1e9, source.now_s)
            if event.kind in {EventKind.JOB_STARTED, EventKind.JOB_ENDED}:
                for name in job.nodes:
                    self._owners_changed(name)
        return [_durable(event, source, job)]

    def _job_of_event(self, event: Event, node: NodeState, source: RecordSource) -> JobState | None:
        name = event.job
        if name is None and event.gpu is not None:
            name = self.owners(node).get(str(event.gpu), (None, None))[0]
        if name is None:
            name = self._only_job(node.name)
        return None if name is None else self.job(name, source)

    def _no_room_for_job(self, name: str, source: RecordSource) -> str | None:
        """The bound that refuses a new job, or None."""
        if not 0 < len(name) <= self.limits.name_chars:
            return "name_chars"
        # One node that makes up jobs must not take the place of all others'.
        own = sum(not job.ended and job.nodes.keys() == {source.node} for job in self.jobs.values())
        if own >= self.limits.jobs_per_node:
            return "jobs_per_node"
        return None if len(self.jobs) < self.limits.jobs or self._make_room(_owner_of(source)) else "jobs"

    def _make_room(self, owner: str) -> bool:
        """Forget a job of the owner who has most, unless `owner` would then have as many."""
        counts = Counter(job.first_owner for job in self.jobs.values())
        greediest, most = max(counts.items(), key=itemgetter(1))
        if most <= counts[owner] + 1:
            return False
        # Of its jobs the least that is lost: one that ended, and that was silent for longest.
        theirs = [job for job in self.jobs.values() if job.first_owner == greediest]
        gone = min(theirs, key=lambda job: (not job.ended, job.received_s))
        self._audit.refused(
            Refusal.JOB_QUOTA,
            "A job of the owner with most jobs is forgotten, to make room for that of another owner.",
            actor=greediest,
            about=gone.name,
        )
        self._forget_job(gone.name)
        return True

    def _only_job(self, node: str) -> str | None:
        jobs = [job for job in self.jobs.values() if node in job.nodes]
        chosen = [job for job in jobs if not job.ended] or jobs
        return chosen[0].name if len(chosen) == 1 else None

    def _forget_left_nodes(self, job: JobState) -> None:
        """A new start may be on other nodes: those whose agents left are none of its own."""
        for name in [name for name in job.nodes if name in self.nodes and self.nodes[name].left]:
            self.nodes[name].forget_job(job.name)
            del job.nodes[name]

    def _owners_changed(self, node: str) -> None:
        if node in self.nodes:
            self.nodes[node].version += 1


def _owner_of(source: RecordSource) -> str:
    return source.node if source.namespace is None else source.namespace


def _durable(record: Record, source: RecordSource, job: JobState | None = None) -> Durable:
    return Durable(
        node=source.node,
        job=job.name if job else "",
        attempt=job.attempts.number if job else 0,
        record=record,
        time_unix_s=source.sent_unix_s,
    )
