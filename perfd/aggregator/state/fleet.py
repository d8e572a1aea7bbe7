"""The state of everything: nodes and jobs, filled by the records of batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.failures import Failures, Part
from perfd.aggregator.jobs import JobRegistry, JobState, RecordSource, as_member
from perfd.aggregator.jobs.rank_samples import put_rank_samples
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.alike_tables import AlikeBlock
from perfd.aggregator.state.durable_records import Durable, durable_record
from perfd.aggregator.state.job_members import JobMembers
from perfd.aggregator.state.node_state import NodeState
from perfd.errors import RefusedError
from perfd.model import (
    BatchInterval,
    CaptureCancel,
    CollectiveProgress,
    CollectiveTimes,
    CollectorHealth,
    Event,
    GpuAllocations,
    GpuInfo,
    JobDescription,
    JobOrigin,
    LogProgress,
    MemoryReport,
    NodeMessage,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    ServerInfo,
    StepPhases,
    TrainingStep,
)

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
    CollectiveTimes: JobState.steps_by,
    CollectiveProgress: JobState.collective_progress,
}
_MAX_STEP = 1 << 53
"""Larger ones are garbage, and no double holds them."""
_KEPT = (JobDescription, TrainingStep, StepPhases)
_NODE_LOOKS = 100
"""How often nodes to forget are looked for, in the time after which they are forgotten."""


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
        self.limits = limits
        self.counters = counters
        self.nodes: dict[str, NodeState] = {}
        self.jobs = JobRegistry(limits, counters, self._audit, any_job, self._job_gone)
        self.members = JobMembers(self.nodes, self.jobs)
        self._looked_s = -math.inf
        """When nodes to forget were looked for last."""

    def apply(self, records: Iterable[Record], source: RecordSource) -> list[Durable]:
        """Take the records of one batch; returns what history has to keep, in order.

        A record that cannot be applied is dropped and counted.
        """
        node = self.nodes.get(source.node) or self.node(source.node)
        if node is None:
            return []
        node.received_s = source.now_s
        node.comes_back()
        latest_unix_ns = round((source.sent_unix_s + self.limits.sample_ahead_s) * 1e9)
        if source.sent_unix_s and not source.late:
            # What the node's clock showed before it was set back is ahead of all that follows.
            node.readings.drop_gpus_after(latest_unix_ns)
        durable: list[Durable] = []
        for record in records:
            self.counters.records += 1
            try:
                if isinstance(record, SampleTable):
                    self._take_table(record, node, source, latest_unix_ns)
                else:
                    durable += self._apply(self._as_meant(record, source.node), node, source)
            except RefusedError as refusal:
                self._refuse(str(refusal), record, source)
            except Exception as error:  # noqa: BLE001  (whatever it is, the stream goes on)
                self._failures.note(Part.RECORD, error, node=source.node, record=type(record).__name__)
        return durable

    def again(self, records: Iterable[Record], source: RecordSource) -> list[Durable]:
        """What history has to keep of a batch that was applied before, and that it had no room for then."""
        durable: list[Durable] = []
        for reported in records:
            if isinstance(reported, SampleTable):
                continue
            record = self._as_meant(reported, source.node)
            name = record.job if isinstance(record, (*_KEPT, RankPlacement, Event)) else None
            if isinstance(record, Event):
                name = name or self.jobs.only_on(source.node)
            job = None
            with contextlib.suppress(RefusedError):
                job = self.members.job(name, source) if name else None
            if job is not None and as_member(job, source).member:
                described = job.description if isinstance(record, JobDescription) else None
                durable.append(durable_record(described or record, source, job))
            elif isinstance(record, GpuInfo | ServerInfo):
                durable.append(durable_record(record, source))
        return durable

    def leave(self, agent_id: str, node: str, sent_unix_s: float, now_s: float) -> None:
        """Take in that the agent of a node said goodbye."""
        for job in self.jobs.values():
            job.leave(agent_id, sent_unix_s, now_s)
            job.ownership.leaves(node)
        if (known := self.nodes.get(node)) is not None:
            known.left = True

    def end_jobs(self, now_s: float) -> list[Durable]:
        """End the jobs that are over by now; returns what history has to keep of that."""
        durable: list[Durable] = []
        for job in self.jobs.values():
            exported = job.exported
            event = job.end_if_over(now_s)
            if job.exported != exported or event is not None:
                for name in job.nodes:
                    self.members.owners_changed(name)
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

    def addressed(self, node: str, message: NodeMessage) -> NodeMessage:
        """A message with the job's name as the agent of a node has it."""
        if isinstance(message, CaptureCancel | BatchInterval):
            return message
        return replace(message, job=self.jobs.names.own_name(node, message.job))

    def forget(self, now_s: float, after_s: float) -> list[str]:
        """Drop the jobs that sent nothing for `after_s`, and soon after it nodes; returns the jobs' names."""
        gone = [name for name, job in self.jobs.items() if now_s - job.received_s > after_s]
        for name in gone:
            self.jobs.forget(name)
        if now_s - self._looked_s >= after_s / _NODE_LOOKS:
            self._looked_s = now_s
            for name in [name for name, node in self.nodes.items() if now_s - node.received_s > after_s]:
                del self.nodes[name]
        return gone

    def _job_gone(self, name: str) -> None:
        for node in self.nodes.values():
            node.forget_job(name)

    def _refuse(self, sentence: str, record: Record, source: RecordSource) -> None:
        about = getattr(record, "job", None) or ""
        self._audit.refused(Refusal.JOB_OWNER, sentence, actor=source.node, about=about)

    def _as_meant(self, record: Record, node: str) -> Record:
        """The record with the job that the node means by its name."""
        name = getattr(record, "job", None)
        # An origin keeps its name: that is how jobs of one name are distinguished.
        if name is None or isinstance(record, JobOrigin):
            return record
        key = self.jobs.names.key(name, node)
        changed: Any = record
        renamed: Record = record if key == name else replace(changed, job=key)
        return renamed

    def _take_table(
        self, table: SampleTable, node: NodeState, source: RecordSource, latest_unix_ns: int
    ) -> None:
        """Take its rows up to a time."""
        columns, times_ns = table.columns, table.times_unix_ns
        newest_ns = columns.newest_unix_ns if isinstance(columns, AlikeBlock) else max(times_ns, default=0)
        if source.sent_unix_s and newest_ns > latest_unix_ns:
            whole, table = table, _until(table, latest_unix_ns)
            self.counters.rejected["sample_ahead_s"] += len(whole.entities) - len(table.entities)
        if table.scope is Scope.RANK:
            table = replace(table, entities=self.jobs.names.rank_entities(table.entities, node.name))
        node.version += node.readings.take(table, source.now_s)
        if table.scope is Scope.RANK:
            put_rank_samples(table, self.jobs, source)

    def _apply(self, record: Record, node: NodeState, source: RecordSource) -> list[Durable]:
        if isinstance(record, CollectorHealth):
            # First: most records are such.
            node.collector_health(record)
            return []
        if isinstance(record, _JobRecord):
            return self._apply_to_job(record, source)
        if isinstance(record, JobOrigin):
            return self.members.claim(record, source)
        return self._apply_to_node(record, node, source)

    def _apply_to_job(self, record: _JobRecord, source: RecordSource) -> list[Durable]:
        if isinstance(record, TrainingStep | StepPhases) and record.step > _MAX_STEP:
            self.counters.rejected["step_number"] += 1
            return []
        job = self.members.job(record.job, source)
        if job is None:
            return []
        if isinstance(record, CollectiveTimes):
            job.communication.collectives.put(record)
        event = _JOB_RECORDS[type(record)](job, record, as_member(job, source))
        durable = [] if event is None else [durable_record(event, source, job)]
        if event is not None:
            self.members.forget_left_nodes(job)
        if isinstance(record, JobDescription):
            # What is known after the merge: history holds one description per attempt.
            durable.append(durable_record(job.description or record, source, job))
        elif isinstance(record, _KEPT):
            durable.append(durable_record(record, source, job))
        return durable

    def _apply_to_node(self, record: Record, node: NodeState, source: RecordSource) -> list[Durable]:
        if isinstance(record, GpuInfo):
            return [durable_record(record, source)] if node.gpu_info(record) else []
        if isinstance(record, ServerInfo):
            return [durable_record(record, source)] if node.server_info(record) else []
        if isinstance(record, GpuAllocations):
            node.allocated(record)
            return []
        if isinstance(record, RankPlacement):
            return self.members.place(record, node, source)
        if isinstance(record, Event):
            return self.members.event(record, node, source)
        return []


def _until(table: SampleTable, latest_unix_ns: int) -> SampleTable:
    """The rows of a table up to a time."""
    rows = [row for row, time_ns in enumerate(table.times_unix_ns) if time_ns <= latest_unix_ns]
    return SampleTable(
        scope=table.scope,
        times_unix_ns=[table.times_unix_ns[row] for row in rows],
        entities=[table.entities[row] for row in rows],
        columns={name: [values[row] for row in rows] for name, values in table.columns.items()},
    )
