"""The memory of nodes: what each round blames them for, in the ledger and in history."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfd.aggregator.history import HistoryStore, Statement, node_memory_row
from perfd.aggregator.jobs import JobState
from perfd.aggregator.nodes.drain_runner import DrainRunner
from perfd.aggregator.nodes.hardware_counters import HardwareCounters
from perfd.aggregator.state import AggregatorState, NodeState
from perfd.aggregator.state.gpu_owners import gpu_owners, gpus_per_rank
from perfd.analysis.diagnosis import JobSummary
from perfd.capture.policy.capture_record import Capture
from perfd.errors import ConfigError
from perfd.nodes import (
    Drain,
    Incident,
    IncidentKind,
    NodeLedger,
    NodeRecord,
    NodeStanding,
    Scheduler,
    blames_of,
    standings,
)

log = logging.getLogger(__name__)

_EVERY_S = 5.0
"""Between two looks at a node. Chosen."""
_SLICES = 16
"""Nodes are looked at in turns: no round looks at a whole fleet."""
_JUDGED_ALL_EVERY_S = 30.0
"""Between two judgments of all nodes without news: only the time that they were observed for has passed."""
_KEEP_EVERY_S = 60.0
"""Between two writes of the ledger to history: a kill loses at most so much."""
_LONGEST_LOOK_S = 60.0
"""No more time than this is counted for one look, however long ago the last one was."""
_SILENT_S = 30.0
"""A job that sent nothing for longer is not observed. Chosen."""
_FORGET_HALF_LIVES = 6.0
"""After so many an incident weighs less than 2%."""
_DAY_S = 86_400.0
_MOST_DAYS = 3_660
"""Ten years: times of longer ones would not fit."""


@dataclass(slots=True)
class _Look:
    """When a node was looked at last, and when it is looked at next."""

    looked_s: float
    due_s: float
    described: tuple[int, Scheduler | None] | None = None
    """The version of the node, and the scheduler, that the ledger knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActiveJob:
    name: str
    attempt: int
    scheduler: Scheduler | None


class NodeMemory:
    """Remembers what nodes were blamed for; raises `ConfigError`.

    `take` is called by the analysis loop, the rest by any thread.
    """

    def __init__(
        self,
        state: AggregatorState,
        history: HistoryStore | None,
        *,
        half_life_days: float,
        drains: DrainRunner | None = None,
        failed_captures: Callable[[], Iterable[tuple[Capture, str, str]]] = tuple,
    ) -> None:
        """`failed_captures` are those that failed on a node, with the node and why."""
        if not 0 < half_life_days < _MOST_DAYS:
            raise ConfigError(f"nodes.half_life_days: it must be more than 0 and below {_MOST_DAYS}.")
        self._state = state
        self._history = history
        self._drains = drains
        self._failed_captures = failed_captures
        self._ledger = NodeLedger(half_life_days * _DAY_S)
        self._hardware = HardwareCounters()
        self._looks: dict[str, _Look] = {}
        self._taken_s: float | None = None
        self._judged_s = -math.inf
        self._kept_s = 0.0
        self._standings_s, self._standings_news = -math.inf, 0
        """When standings were made last, and of which news."""
        self._last_steps: dict[str, int] = {}
        self._progress_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._standings: Sequence[NodeStanding] = ()
        if history is not None:
            self._ledger.restore(*history.node_ledger())
            if drains is not None:
                drains.restore(history.node_drains())
        self._known_failures = {(capture.capture_id, node) for capture, node, _ in failed_captures()}

    def standings(self) -> Sequence[NodeStanding]:
        """Every known node as of the newest look, the most suspect first."""
        with self._lock:
            return self._standings

    def drains(self) -> Sequence[Drain]:
        """What was drained, oldest first."""
        return self._drains.past() if self._drains is not None else ()

    def take(self, summaries: Mapping[str, JobSummary], now_unix_s: float, now_s: float) -> None:
        """Look at the nodes that are due, and every five seconds at the newest summaries of jobs."""
        with self._state.lock:
            active = self._active(now_s)
            self._look_at_nodes(active, now_unix_s, now_s)
        if now_s - self._judged_s < _EVERY_S:
            return
        self._judged_s = now_s
        running = {name: summary for name, summary in summaries.items() if name in active}
        with self._state.lock:
            places = self._places([name for name, summary in running.items() if summary.findings])
            fleet = self._state.fleet
            ranks = [
                (job, summary.parallel.world_size)
                for name, summary in running.items()
                if summary.parallel.world_size and (job := fleet.jobs.get(name)) is not None
            ]
            shares = gpus_per_rank(ranks, fleet.nodes)
        for name, summary in running.items():
            self._look_at_job(
                active[name], summary, places.get(name, {}), now_unix_s, now_s, share=shares.get(name, 1.0)
            )
        gone = self._progress_s.keys() - active.keys()
        for name in gone:
            del self._progress_s[name]
            self._last_steps.pop(name, None)
        self._look_at_captures()
        if self._ledger.news != self._standings_news or now_s - self._standings_s >= _JUDGED_ALL_EVERY_S:
            self._standings_news, self._standings_s = self._ledger.news, now_s
            found = standings(self._ledger, now_unix_s)
            with self._lock:
                self._standings = found
        if self._drains is not None:
            self._drains.act([one for one in self._standings if one.suspect], now_unix_s)
        if now_s - self._kept_s >= _KEEP_EVERY_S:
            self._ledger.expire(now_unix_s, _FORGET_HALF_LIVES * self._ledger.half_life_s)
            self.keep()
            self._kept_s = now_s

    def keep(self) -> None:
        """Write what changed to history."""
        records, incidents = self._ledger.changes()
        rows = [*map(_record_row, records), *map(_incident_row, incidents)]
        if self._drains is not None:
            rows += map(_drain_row, self._drains.changes())
        if self._history is not None and rows:
            self._history.submit(rows)

    def _active(self, now_s: float) -> dict[str, _ActiveJob]:
        """The jobs that run now."""
        return {
            name: _ActiveJob(name=name, attempt=job.attempts.number, scheduler=_scheduler(job))
            for name, job in self._state.fleet.jobs.items()
            if not job.ended and now_s - job.received_s <= _SILENT_S
        }

    def _due(self, now_s: float) -> Iterator[tuple[NodeState, float]]:
        """The nodes whose turn it is, with the time to count: for a new one, since the last call."""
        nodes = self._state.fleet.nodes
        new_s = 0.0 if self._taken_s is None else min(_EVERY_S, now_s - self._taken_s)
        self._taken_s = now_s
        if gone := self._looks.keys() - nodes.keys():
            for name in gone:
                del self._looks[name]
            self._hardware.keep(self._looks.keys())
        for name, node in nodes.items():
            look = self._looks.get(name)
            if look is None:
                first_s = _EVERY_S * (1 + len(self._looks) % _SLICES) / _SLICES
                self._looks[name] = _Look(looked_s=now_s, due_s=now_s + first_s)
                yield node, new_s
            elif now_s >= look.due_s:
                yield node, min(_LONGEST_LOOK_S, now_s - look.looked_s)
                look.looked_s, look.due_s = now_s, now_s + _EVERY_S

    def _look_at_nodes(self, active: Mapping[str, _ActiveJob], now_unix_s: float, now_s: float) -> None:
        for node, passed_s in self._due(now_s):
            served = {
                gpu: running
                for gpu, owners in gpu_owners(node, self._state.fleet.jobs).items()
                if (running := [job for job in owners if job in active])
            } or _ranks_without_gpu(node, active)
            schedulers = (active[job].scheduler for jobs in served.values() for job in jobs)
            self._describe(node, next((one for one in schedulers if one is not None), None))
            self._ledger.observe(node.name, dict.fromkeys(served, passed_s), now_unix_s)
            for errors in self._hardware.new_errors(node):
                of_gpu = served.get(errors.gpu, ())
                job = errors.job or (of_gpu[0] if len(of_gpu) == 1 else "")
                self._ledger.note(
                    Incident(
                        node=node.name,
                        gpu=errors.gpu,
                        kind=errors.kind,
                        job=job,
                        attempt=active[job].attempt if job in active else 0,
                        first_unix_s=now_unix_s,
                        last_unix_s=now_unix_s,
                        count=errors.count,
                        evidence=errors.evidence,
                    )
                )

    def _describe(self, node: NodeState, scheduler: Scheduler | None) -> None:
        look = self._looks[node.name]
        if look.described == (node.version, scheduler) and node.name in self._ledger.records:
            return
        look.described = node.version, scheduler
        self._ledger.describe(
            node.name,
            kind=next((info.name for info in node.gpu_infos.values()), ""),
            scheduler=scheduler,
            uuids={
                str(info.index): info.uuid for info in node.gpu_infos.values() if info.uuid and not info.mig
            },
        )

    def _places(self, active: Collection[str]) -> dict[str, dict[int, tuple[str, str]]]:
        """Where each rank of each of these jobs is."""
        places: dict[str, dict[int, tuple[str, str]]] = {job: {} for job in active}
        for node in self._state.fleet.nodes.values():
            for (job, rank), placed in node.placements.items():
                if job in places:
                    places[job][rank] = (node.name, "" if placed.gpu is None else str(placed.gpu))
        return places

    def _look_at_job(
        self,
        job: _ActiveJob,
        summary: JobSummary,
        places: Mapping[int, tuple[str, str]],
        now_unix_s: float,
        now_s: float,
        *,
        share: float,
    ) -> None:
        seen = {gpu.rank: (gpu.node, gpu.gpu) for gpu in summary.gpus if gpu.rank is not None}
        blames = blames_of(summary, {**seen, **places})
        hangs = any(blame.kind is IncidentKind.HANG for blame in blames)
        stepped = summary.steps.last is not None and self._last_steps.get(job.name) != summary.steps.last
        passed_s = min(self._limit_s(summary), now_s - self._progress_s.setdefault(job.name, now_s))
        if not stepped and not hangs:
            # A checkpoint, an evaluation or a job that waits: what the last steps showed costs nothing now.
            return
        self._progress_s[job.name] = now_s
        if summary.steps.last is not None:
            self._last_steps[job.name] = summary.steps.last
        for blame in blames:
            self._ledger.note(
                Incident(
                    node=blame.node,
                    gpu=blame.gpu,
                    kind=blame.kind,
                    job=job.name,
                    attempt=job.attempt,
                    first_unix_s=now_unix_s,
                    last_unix_s=now_unix_s,
                    weight=blame.weight,
                    seen_s=passed_s,
                    lost_gpu_s=blame.lost_gpus * share * passed_s,
                    evidence=blame.evidence,
                )
            )

    def _limit_s(self, summary: JobSummary) -> float:
        return max(_LONGEST_LOOK_S, 3 * (summary.step_time_s.median or 0.0))

    def _look_at_captures(self) -> None:
        before, failures = self._known_failures, list(self._failed_captures())
        self._known_failures = {(capture.capture_id, node) for capture, node, _ in failures}
        for capture, node, reason in failures:
            if (capture.capture_id, node) in before:
                continue
            over_unix_s = capture.ended_unix_s or capture.requested_unix_s
            self._ledger.note(
                Incident(
                    node=node,
                    kind=IncidentKind.CAPTURE_FAILED,
                    job=capture.job,
                    first_unix_s=over_unix_s,
                    last_unix_s=over_unix_s,
                    weight=IncidentKind.CAPTURE_FAILED.weight,
                    count=1,
                    evidence=reason,
                )
            )


def _ranks_without_gpu(node: NodeState, active: Mapping[str, _ActiveJob]) -> dict[str, list[str]]:
    """By local rank, where no GPU is known: each rank has one."""
    return {
        f"rank {rank if placed.local_rank is None else placed.local_rank}": [job]
        for (job, rank), placed in node.placements.items()
        if job in active
    }


def _scheduler(job: JobState) -> Scheduler | None:
    origin = job.ownership.origin
    if origin is None:
        return None
    if origin.scheduler_restarts is not None or origin.nodes:
        return Scheduler.SLURM
    return Scheduler.KUBERNETES if origin.namespace else None


def _record_row(record: NodeRecord) -> Statement:
    """A node, without its incidents, which have rows of their own."""
    body = {
        "node": record.node,
        "kind": record.kind,
        "scheduler": record.scheduler,
        "uuids": record.uuids,
        "observed_gpu_s": record.observed_gpu_s,
        "observed_unix_s": record.observed_unix_s,
    }
    return node_memory_row(record.node, "node", "", record.observed_unix_s, body)


def _incident_row(incident: Incident) -> Statement:
    """One incident."""
    return node_memory_row(incident.node, "incident", incident.key, incident.last_unix_s, incident)


def _drain_row(drain: Drain) -> Statement:
    """A node that was taken out of scheduling."""
    return node_memory_row(drain.node, "drain", str(drain.unix_s), drain.unix_s, drain)
