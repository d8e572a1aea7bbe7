"""The state of everything: nodes and jobs, filled by batches, read as `JobData`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from perfd.aggregator.jobs import JobState, Source
from perfd.aggregator.limits import Counters, Limits
from perfd.aggregator.readings import GpuHistory, Readings, values_of
from perfd.model import (
    CollectorHealth,
    Event,
    GpuInfo,
    JobDescription,
    LogProgress,
    MemoryReport,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
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


@dataclass(slots=True, kw_only=True)
class NodeState:
    """One node, by the name that is unique among live agents."""

    name: str
    gpu_history: GpuHistory
    readings: dict[Scope, Readings] = field(default_factory=dict)
    gpu_infos: dict[int, GpuInfo] = field(default_factory=dict)
    placements: dict[tuple[str, int], RankPlacement] = field(default_factory=dict)
    """By job and rank; a later one with the same GPU has taken its place."""
    health: dict[str, CollectorHealth] = field(default_factory=dict)
    version: int = 0
    """Counts up when the node's GPUs, or whom they serve, have changed; not with samples."""
    samples_version: int = 0
    received_s: float = 0.0


class Fleet:
    """Applies batches. Not thread-safe: the aggregator's state lock is held around every call."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self.limits = limits
        self.counters = counters
        self.nodes: dict[str, NodeState] = {}
        self.jobs: dict[str, JobState] = {}
        self._take: dict[type, Callable[[Any, NodeState, Source], Iterable[Durable]]] = {
            SampleTable: self._take_samples,
            GpuInfo: self._take_gpu_info,
            RankPlacement: self._take_placement,
            JobDescription: self._take_description,
            TrainingStep: self._take_step,
            StepPhases: self._take_phases,
            MemoryReport: self._take_memory,
            Event: self._take_event,
            LogProgress: self._take_log,
            CollectorHealth: self._take_health,
        }

    def apply(self, records: Iterable[Record], source: Source) -> list[Durable]:
        """Take the records of one batch; returns what history has to keep, in order."""
        node = self._node(source.node)
        if node is None:
            return []
        node.received_s = source.now_s
        durable: list[Durable] = []
        for record in records:
            self.counters.records += 1
            durable.extend(self._take[type(record)](record, node, source))
        return durable

    def jobs_of_gpus(self, node: NodeState) -> dict[str, tuple[str, int | None]]:
        """For each GPU of a node that serves a job: the job, and the rank when it is known."""
        owners: dict[str, tuple[str, int | None]] = {
            str(placement.gpu): (job, rank)
            for (job, rank), placement in node.placements.items()
            if placement.gpu is not None
        }
        only = self._only_job(node.name)
        if only is not None:
            for gpu in node.gpu_history.gpus.known:
                owners.setdefault(gpu, (only, None))
        return owners

    def job(self, name: str, source: Source | None = None) -> JobState | None:
        """The job of that name, made when a source speaks of it; None when there are too many."""
        job = self.jobs.get(name)
        if job is None:
            if source is None:
                return None
            if len(self.jobs) >= self.limits.jobs:
                self.counters.rejected["jobs"] += 1
                return None
            job = self.jobs[name] = JobState(name, self.limits, self.counters)
        if source is not None:
            if source.node not in job.nodes:
                self._owners_changed(source.node)
            job.touch(source)
        return job

    def restore_node(self, name: str) -> NodeState | None:
        """The node of that name, for records that history kept."""
        return self._node(name)

    def forget(self, now_s: float, after_s: float) -> list[str]:
        """Drop the jobs and nodes that sent nothing for `after_s`; returns the jobs' names."""
        gone = [job.name for job in self.jobs.values() if now_s - job.received_s > after_s]
        for name in gone:
            for node in self.jobs.pop(name).nodes:
                self._owners_changed(node)
        for node in [node for node in self.nodes.values() if now_s - node.received_s > after_s]:
            del self.nodes[node.name]
        for node in self.nodes.values():
            for key in [key for key in node.placements if key[0] in gone]:
                del node.placements[key]
        return gone

    def _node(self, name: str) -> NodeState | None:
        node = self.nodes.get(name)
        if node is None:
            if len(self.nodes) >= self.limits.nodes:
                self.counters.rejected["nodes"] += 1
                return None
            limits = self.limits
            history = GpuHistory(
                gpus=limits.entities_per_scope,
                metrics=limits.metrics_per_scope,
                seconds=limits.gpu_history_s,
                rows=limits.gpu_history_rows,
            )
            node = self.nodes[name] = NodeState(name=name, gpu_history=history)
        return node

    def _only_job(self, node: str) -> str | None:
        jobs = [job for job in self.jobs.values() if node in job.nodes]
        running = [job for job in jobs if not job.ended]
        chosen = running or jobs
        return chosen[0].name if len(chosen) == 1 else None

    def _owners_changed(self, node: str) -> None:
        if node in self.nodes:
            self.nodes[node].version += 1

    def _take_samples(self, table: SampleTable, node: NodeState, source: Source) -> Iterable[Durable]:
        if not table.columns or not len(table.times_unix_ns):
            return ()
        values = values_of(table)
        self.counters.samples += values.size
        refused = 0
        if table.scope not in node.readings:
            limits = self.limits
            node.readings[table.scope] = Readings(
                entities=limits.entities_per_scope, metrics=limits.metrics_per_scope
            )
        readings = node.readings[table.scope]
        shape = readings.values.shape
        refused = readings.update(table, values, source.now_s)
        if table.scope is Scope.GPU:
            node.gpu_history.append(table, values)
            node.samples_version += 1
        if readings.values.shape != shape:
            node.version += 1
        if refused:
            self.counters.rejected["metrics_or_entities_per_scope"] += refused
        return ()

    def _take_gpu_info(self, info: GpuInfo, node: NodeState, source: Source) -> Iterable[Durable]:
        if node.gpu_infos.get(info.index) == info:
            return ()
        if len(node.gpu_infos) >= self.limits.entities_per_scope:
            self.counters.rejected["entities_per_scope"] += 1
            return ()
        node.gpu_infos[info.index] = info
        node.version += 1
        return self._durable(info, source)

    def _take_placement(self, placement: RankPlacement, node: NodeState, source: Source) -> Iterable[Durable]:
        job = self.job(placement.job, source)
        key = (placement.job, placement.rank)
        if job is None or node.placements.get(key) == placement:
            return ()
        if placement.rank >= self.limits.ranks_per_job:
            self.counters.rejected["ranks_per_job"] += 1
            return ()
        for other in [k for k, p in node.placements.items() if p.gpu is not None and p.gpu == placement.gpu]:
            if other[0] != placement.job or other == key:
                del node.placements[other]
        node.placements[key] = placement
        node.version += 1
        job.version += 1
        return self._durable(placement, source, job)

    def _take_description(
        self, description: JobDescription, node: NodeState, source: Source
    ) -> Iterable[Durable]:
        job = self.job(description.job, source)
        if job is None:
            return ()
        event = job.describe(description, source)
        merged = job.description or description
        return [*self._durable(merged, source, job), *self._durable(event, source, job)]

    def _take_step(self, line: TrainingStep, node: NodeState, source: Source) -> Iterable[Durable]:
        job = self.job(line.job, source)
        if job is None:
            return ()
        event = job.step(line, source)
        return [*self._durable(event, source, job), *self._durable(line, source, job)]

    def _take_phases(self, block: StepPhases, node: NodeState, source: Source) -> Iterable[Durable]:
        job = self.job(block.job, source)
        if job is None:
            return ()
        job.step_phases(block)
        return self._durable(block, source, job)

    def _take_memory(self, report: MemoryReport, node: NodeState, source: Source) -> Iterable[Durable]:
        job = self.job(report.job, source)
        if job is not None:
            job.memory_report(report)
        return ()

    def _take_event(self, event: Event, node: NodeState, source: Source) -> Iterable[Durable]:
        name = event.job
        if name is None and event.gpu is not None:
            name = self.jobs_of_gpus(node).get(str(event.gpu), (None, None))[0]
        if name is None:
            name = self._only_job(node.name)
        job = self.job(name, source) if name is not None else None
        if job is not None:
            job.event(event, node.name)
            self._owners_changed(node.name)
        return self._durable(event, source, job)

    def _take_log(self, progress: LogProgress, node: NodeState, source: Source) -> Iterable[Durable]:
        job = self.job(progress.job, source)
        if job is not None:
            job.log_progress(progress, source)
        return ()

    def _take_health(self, health: CollectorHealth, node: NodeState, source: Source) -> Iterable[Durable]:
        if health.collector in node.health or len(node.health) < self.limits.collectors_per_agent:
            node.health[health.collector] = health
        else:
            self.counters.rejected["collectors_per_agent"] += 1
        return ()

    def _durable(self, record: Record | None, source: Source, job: JobState | None = None) -> list[Durable]:
        if record is None:
            return []
        return [
            Durable(
                node=source.node,
                job=job.name if job else "",
                attempt=job.attempt if job else 0,
                record=record,
                time_unix_s=source.sent_unix_s,
            )
        ]
