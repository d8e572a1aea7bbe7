"""One job's state as the arrays that the analysis reads, and the numbers that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.aggregator.jobs import JobState, shown_steps
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.aggregator.state.fleet import Fleet
from perfd.aggregator.state.gpu_owners import gpu_owners
from perfd.aggregator.state.gpu_samples import gpu_table
from perfd.aggregator.state.node_state import NodeState
from perfd.analysis.data.job_data import NO_NCCL_TIMES, Captured, Floats, GpuTable, JobData, StepTable
from perfd.analysis.data.robust_stats import known, median
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.model import NicColumn, RankPlacement, Scope
from perfd.thresholds import THRESHOLDS

StateKey = tuple[int, ...]
"""Another one whenever something that the analysis reads of a job has changed."""
_NO_SAMPLES = GpuTable(time_unix_s=np.zeros(0), gpus=(), metrics={})


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from one state of a job."""

    key: StateKey
    data: JobData
    """Without samples of GPUs and operations, which only the summary needs."""
    summary: JobSummary
    made_s: float
    """Monotonic time of the numbers."""


class JobNumbers:
    """Derives the numbers of jobs, again only when something has changed. Thread-safe."""

    def __init__(self, state: AggregatorState, settings: AnalysisSettings, rows: int | None) -> None:
        """Of each job the newest `rows` progress lines are looked at; None: all."""
        self._state = state
        self._settings = settings
        self._rows = rows
        self.newest: dict[str, Derived] = {}
        """By job, what was kept last. Any thread may read it."""

    def derive(self, name: str, now_unix_s: float, now_s: float) -> Derived | None:
        """The numbers of a job as it is now, those kept if nothing changed; None when it is gone."""
        fleet = self._state.fleet
        with self._state.lock:
            job = fleet.jobs.get(name)
            if job is None:
                return None
            key = state_key(fleet, job, now_s)
            old = self.newest.get(name)
            if old is not None and old.key == key:
                return old
            data = job_data(fleet, job, now_unix_s=now_unix_s, now_s=now_s, window_steps=self._rows)
        return Derived(key, _without_samples(data), summarise(data, self._settings), now_s)

    def keep(self, name: str, derived: Derived) -> None:
        """Let others read the numbers of a job, and derive no others while nothing changes."""
        with self._state.lock:
            job = self._state.fleet.jobs.get(name)
            # A request may still be at work on a job that a round has just forgotten.
            if job is not None and derived.key[0] == id(job):
                self.newest[name] = derived

    def since(self, name: str, now_unix_s: float, now_s: float, since_unix_s: float) -> JobSummary | None:
        """The summary from a moment on, made anew each time; None when the job is gone."""
        fleet = self._state.fleet
        with self._state.lock:
            if (job := fleet.jobs.get(name)) is None:
                return None
            data = job_data(fleet, job, now_unix_s=now_unix_s, now_s=now_s, since_unix_s=since_unix_s)
        return summarise(data, self._settings)


def state_key(fleet: Fleet, job: JobState, now_s: float) -> StateKey:
    """Another one whenever what the analysis reads of a job has changed, and every 10 s of silence."""
    nodes = [fleet.nodes[name] for name in job.nodes if name in fleet.nodes]
    samples = 0 if job.ended else sum(node.readings.gpu_tables for node in nodes)
    silent_looks = int((job.log_silent_s(now_s) or 0.0) // THRESHOLDS.hang_silence_s)
    return (id(job), job.version, samples, sum(node.version for node in nodes), silent_looks)


def _without_samples(data: JobData) -> JobData:
    return dataclasses.replace(data, gpu=_NO_SAMPLES, collectives=(), nccl=NO_NCCL_TIMES, progress=())


def job_data(
    fleet: Fleet,
    job: JobState,
    *,
    now_unix_s: float,
    now_s: float,
    window_steps: int | None = None,
    since_unix_s: float | None = None,
) -> JobData:
    """All that is known of a job, or its newest `window_steps` progress lines and what belongs to them.

    With `since_unix_s` only progress lines and samples from then on; there may be none.
    The arrays are copies: the state may change while they are read.
    """
    windowed = window_steps is not None or since_unix_s is not None
    shown = shown_steps(job, from_begin=not windowed)
    steps = _newest(shown.steps, window_steps, since_unix_s)
    nodes = [fleet.nodes[name] for name in job.nodes if name in fleet.nodes]
    placements = _placements(nodes, job.name)
    first_step = int(steps.step[0]) if windowed and len(steps) else 0
    return JobData(
        name=job.name,
        now_unix_s=now_unix_s,
        description=job.description,
        steps=steps,
        step_source=job.step_source,
        operation_pace=shown.pace,
        steps_by_operations=shown.steps if shown.pace is not None and windowed else None,
        phases=job.phases.table(
            first_step=first_step, ranks=min(job.world_size or 0, fleet.limits.ranks_per_job)
        ),
        gpu=gpu_table(fleet, job, nodes, steps if window_steps is not None else None, since_unix_s),
        gpu_infos={node.name: tuple(node.gpu_infos.values()) for node in nodes if node.gpu_infos},
        ports_bytes_per_s={node.name: total for node in nodes if (total := ports_bytes_per_s(node))},
        placements=placements,
        gpu_sharers=_sharers(fleet, nodes, job.name, placements),
        memory=tuple(job.memory.values()),
        events=tuple(job.events),
        collectives=job.communication.collectives.stacks(),
        nccl=job.communication.nccl.table(),
        host_waits=job.communication.host_waits.table(now_s),
        launches=job.communication.launches.table(now_s),
        progress=job.communication.progress.newest(),
        captured=job.captured and _with_step_time(job.captured, shown.steps),
        longest_pause_s=_longest_pause_s(shown.steps.time_unix_s, job.attempts.began_unix_s),
        log_silent_s=job.log_silent_s(now_s),
        started_unix_s=job.attempts.started_unix_s,
        run_began_unix_s=job.attempts.began_unix_s,
        ended_unix_s=job.ended_unix_s,
    )


def _longest_pause_s(times_unix_s: Floats, began_unix_s: float | None) -> float:
    own = times_unix_s if began_unix_s is None else times_unix_s[times_unix_s >= began_unix_s]
    pauses_s = np.diff(own)
    return float(pauses_s.max(initial=0.0, where=np.isfinite(pauses_s)))


def _placements(nodes: Sequence[NodeState], job: str) -> dict[str, tuple[RankPlacement, ...]]:
    """By node, where the job's ranks are; without nodes that have none."""
    found = {
        node.name: tuple([one for (name, _), one in node.placements.items() if name == job])
        for node in nodes
        if node.placements
    }
    return {node: placed for node, placed in found.items() if placed}


def _sharers(
    fleet: Fleet, nodes: Sequence[NodeState], job: str, placements: Mapping[str, Sequence[RankPlacement]]
) -> dict[int, tuple[str, ...]]:
    """By rank, the other running jobs on its GPU that make steps; `placements` are the job's, by node."""
    others: dict[int, tuple[str, ...]] = {}
    for node in nodes:
        placed = placements.get(node.name)
        if placed is None or len(placed) == len(node.placements):
            # Only ranks of others are there, or only the job's.
            continue
        for owners in gpu_owners(node, fleet.jobs).values():
            rank = owners.get(job)
            if rank is not None and (beside := _training(fleet, owners.keys() - {job})):
                others[rank] = beside
    return others


def _training(fleet: Fleet, names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in sorted(names) if fleet.jobs[name].step_source is not None)


def _with_step_time(captured: Captured, steps: StepTable) -> Captured:
    """What a capture showed, with how long the log's steps took that overlap it."""
    took_s = np.nan_to_num(steps.step_time_s * steps.steps_covered)
    ended, began = steps.time_unix_s, steps.time_unix_s - took_s
    times_s = steps.step_time_s[(ended > captured.start_unix_s) & (began < captured.end_unix_s)]
    return dataclasses.replace(captured, step_time_s=known(float(median(times_s))))


def _newest(steps: StepTable, window_steps: int | None, since_unix_s: float | None) -> StepTable:
    if since_unix_s is not None:
        steps = steps.rows(slice(len(steps) - int((steps.time_unix_s >= since_unix_s).sum()), None))
    return steps if window_steps is None else steps.rows(slice(-window_steps, None))


def ports_bytes_per_s(node: NodeState) -> float | None:
    """What all ports that are up send at most together; None when none is known.

    Other interfaces are left out: which of them NCCL would use is unknown.
    """
    if Scope.NIC not in node.readings:
        return None
    readings = node.readings[Scope.NIC]
    interfaces, metrics = readings.layout.entities.known, readings.layout.metrics.known
    if NicColumn.LINK_UP not in metrics or NicColumn.SPEED not in metrics:
        return None
    # A few numbers of each node: arrays of their own would take longer.
    up = readings.values[:, metrics.index(NicColumn.LINK_UP)].tolist()
    speeds = readings.values[:, metrics.index(NicColumn.SPEED)].tolist()
    ports = zip(interfaces, up, speeds, strict=True)
    return sum(speed for name, is_up, speed in ports if "/" in name and is_up == 1 and speed > 0) or None
