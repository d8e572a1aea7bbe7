"""What a decision about a capture may know of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfd.aggregator.state import AggregatorState
from perfd.analysis.data.job_data import JobData
from perfd.analysis.diagnosis import JobSummary
from perfd.capture.expected_job_end import Pace, exit_options, exit_unix_s, limit_unix_s
from perfd.capture.object_keys import job_folder
from perfd.capture.selection import JobView, RankView
from perfd.model import CaptureTool, ParallelLayout, Scope

_PROFILERS = {"sglang": CaptureTool.SGLANG, "vllm": CaptureTool.VLLM}
_PACE_STEPS = 20
"""The newest steady ones, whose median is the pace. Chosen."""
_COMPUTE_TIMERS = ("forward-compute", "backward-compute")


def job_view(state: AggregatorState, data: JobData, summary: JobSummary, tool: CaptureTool) -> JobView:
    """The ranks of a job, where they are, how long they compute, and whom the analysis blames.

    `tool` captures it where nothing else is said.
    """
    with state.lock:
        job = state.fleet.jobs.get(data.name)
        origin = job.ownership.origin if job else None
        attempt = job.attempts.number if job else 0
        nodes = tuple(node for node in (job.nodes if job else ()) if state.agents.of_node(node) is not None)
    compute_s = _compute_by_rank(data) or _time_without_waiting(summary)
    ranks = tuple(
        RankView(
            rank=placement.rank,
            node=node,
            gpu=placement.gpu,
            pod_uid=placement.pod_uid,
            pod_name=placement.pod_name,
            compute_s=compute_s.get(placement.rank),
        )
        for node, placements in data.placements.items()
        for placement in placements
    )
    return JobView(
        job=data.name,
        nodes=nodes,
        ranks=ranks,
        layout=data.description.parallel if data.description else ParallelLayout(),
        culprits=tuple(rank for finding in summary.findings for rank in finding.culprit_ranks),
        tool=tool,
        pace=_pace(data),
        object_folder=job_folder(
            origin.cluster if origin else "", origin.namespace if origin else "", data.name, attempt
        ),
    )


def _pace(data: JobData) -> Pace:
    """What predicts when the job ends: its log, by the newest steady steps."""
    description = data.description
    options = exit_options(description.arguments if description else {})
    placements = [one for ranks in data.placements.values() for one in ranks]
    exits = Pace(
        train_steps=description.train_steps if description else None,
        exit_interval_steps=options.interval_steps,
        exit_unix_s=exit_unix_s(options, placements),
        limit_unix_s=limit_unix_s(placements),
    )
    if not len(data.steps):
        return exits
    steady_s = data.steps.step_time_s[~data.steps.warmup]
    newest_s = steady_s[~np.isnan(steady_s)][-_PACE_STEPS:]
    stepped_unix_s = float(data.steps.time_unix_s[-1])
    return replace(
        exits,
        step=int(data.steps.step[-1]),
        stepped_unix_s=stepped_unix_s if math.isfinite(stepped_unix_s) else None,
        step_time_s=float(np.median(newest_s)) if len(newest_s) else None,
    )


def server_view(state: AggregatorState, name: str) -> JobView | None:
    """The inference server of this name, `NODE/SERVER`, as a job without ranks; None when there is none."""
    with state.lock:
        for node, known in state.fleet.nodes.items():
            readings = known.readings.get(Scope.SERVER)
            servers = readings.layout.entities.known if readings else ()
            if any(name == f"{node}/{server}" for server in servers):
                connected = state.agents.of_node(node) is not None
                info = known.server_infos.get(name.removeprefix(f"{node}/"))
                return JobView(
                    job=name,
                    nodes=(node,) if connected else (),
                    server=True,
                    tool=_PROFILERS.get(info.engine) if info else None,
                    object_folder=job_folder("", "", name, 0),
                )
    return None


def _time_without_waiting(summary: JobSummary) -> Mapping[int, float]:
    """The part of a step in which each rank did not wait in NCCL's kernels: who waits least is slowest.

    What it waits while something else is computed is taken off too, so the time is a lower bound.
    """
    step_time_s = summary.step_time_s.median
    if step_time_s is None:
        return {}
    known = {rank.rank: rank.wait_ratio for rank in summary.nccl.ranks if rank.wait_ratio is not None}
    return {rank: step_time_s * (1.0 - wait_ratio) for rank, wait_ratio in known.items()}


def _compute_by_rank(data: JobData) -> Mapping[int, float]:
    tables = [data.phases.by_rank_s[name] for name in _COMPUTE_TIMERS if name in data.phases.by_rank_s]
    if not tables or len({table.shape for table in tables}) > 1:
        return {}
    total = np.sum(tables, axis=0)
    present = ~np.isnan(total).all(axis=0)
    medians = np.nanmedian(total[:, present], axis=0)
    return dict(zip(np.flatnonzero(present).tolist(), medians.tolist(), strict=True))
