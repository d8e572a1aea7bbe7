"""Entries of the JSON interface, from the state and the newest numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from perfd.aggregator.failures import Part
from perfd.aggregator.jobs import JobState
from perfd.aggregator.state import AgentState, AggregatorState, NodeState
from perfd.aggregator.state.gpu_owners import gpus_per_rank
from perfd.aggregator.web_api.agent_gaps import gaps_of
from perfd.analysis.data.job_data import Floats, StepTable
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.diagnosis import job_json as summary_of_job
from perfd.analysis.diagnosis.job_summary import pending_summary
from perfd.analysis.findings import finding_json
from perfd.capture.selection.rank_conditions import coordinate
from perfd.errors import CaptureError
from perfd.model import GpuColumn, ParallelLayout, Scope

_SHOWN_CULPRITS = 4
"""Of a job in a list; its own document has all."""
_SHOWN_ALERTS = 20
"""Of a job's node, the newest."""
_USED, _TOTAL = GpuColumn.MEMORY_USED.value, GpuColumn.MEMORY_TOTAL.value
_READ = (GpuColumn.TEMPERATURE.value, GpuColumn.SM_CLOCK.value)
_LAST_S = 30.0
"""Before a job's last step: some columns are read every 10 s."""
_WANDB = "wandb.ai"
_WANDB_HOSTS = (".wandb.ai", ".wandb.io")
"""Domains of dedicated servers that W&B runs for its customers."""
_WANDB_RUN = re.compile(
    r"(?:https?://(?P<host>[A-Za-z0-9.-]{1,253})(?::\d{1,5})?/)?"
    r"(?:(?P<entity>[^\s/?#]{1,128})/)?(?P<project>[^\s/?#]{1,128})/runs/(?P<run_id>[\w.-]{1,128})"
)
_PENDING = {"name": "not analyzed yet", "sentence": "perfd has not analyzed this job yet"}
_NOTHING_READ = dict.fromkeys(("memory_used_ratio", *_READ))


def job_json(job: JobState, live: JobSummary | None, now_s: float, failure: str | None) -> dict[str, Any]:
    """One entry of schema perfd.jobs/2: where the job stands now, and its newest numbers.

    `live` is None before its first analysis; `failure` is what of perfd's own work on it fails, if anything
    does.
    """
    analyzed = live is not None
    live = live or pending_summary(job.name)
    entry = entry_of(live)
    if not analyzed:
        entry["bottleneck"] |= _PENDING
    table, origin = job.steps, job.ownership.origin
    entry["steps"] = {"count": len(table), "last": table.last_step, "doubt": live.steps.doubt}
    entry |= {
        "analyzed": analyzed,
        "attempt": job.attempts.number,
        "ended": job.ended,
        "started_unix_s": job.attempts.started_unix_s,
        "ended_unix_s": job.ended_unix_s,
        "outcome": _outcome(job),
        "exit_code": job.lifetime.end.exit_code if job.lifetime.end else None,
        "nodes": sorted(job.nodes),
        **_owned(job),
        "title": (origin.title or None) if origin else None,
        "array": [origin.array_job, origin.array_task] if origin and origin.array_job else None,
        "het_groups": {
            node: group for node, group in sorted(job.ownership.het_groups.items()) if node in job.nodes
        },
        "train_steps": job.description.train_steps if job.description else None,
        "wandb": wandb_run(job.description.wandb_run if job.description else None),
        "log_silent_s": job.log_silent_s(now_s),
        "silent_s": max(0.0, now_s - job.received_s),
        "failure": failure,
    }
    return entry


def wandb_run(named: str | None) -> dict[str, str | None] | None:
    """A job's run of Weights & Biases, by what its agents say; None for none, or for something else.

    `url` is null unless it leads to W&B itself: of another host only the configuration may make a link.
    """
    found = None if named is None else _WANDB_RUN.fullmatch(named)
    if found is None:
        return None
    host = found["host"] or ""
    of_wandb = host == _WANDB or host.endswith(_WANDB_HOSTS)
    return {
        "entity": found["entity"],
        "project": found["project"],
        "run_id": found["run_id"],
        "url": named if of_wandb and found["entity"] else None,
    }


def entry_of(live: JobSummary) -> dict[str, Any]:
    """What of an entry of schema perfd.jobs/2 follows from the summary."""
    entry = summary_of_job(live)
    for left_to_the_summary in ("alerts", "findings", "configuration"):
        entry.pop(left_to_the_summary, None)
    return entry | {"other_findings": [finding_json(finding) for finding in live.others]}


def fleet_json(
    state: AggregatorState,
    live: Mapping[str, JobSummary | None],
    alerts: Sequence[Mapping[str, Any]],
    servers: Sequence[Mapping[str, Any]],
    *,
    now_s: float,
    now_unix_s: float,
) -> dict[str, Any]:
    """The keys of schema perfd.fleet/2, for jobs with their newest numbers, None before the first."""
    firing = Counter(alert["job"] for alert in alerts if alert["state"] == "firing")
    with state.lock:
        rows: list[dict[str, Any]] = []
        running = [
            (job, summary.parallel.world_size)
            for name, summary in live.items()
            if summary is not None
            and (job := state.fleet.jobs.get(name)) is not None
            and not job.ended
            and summary.parallel.world_size
        ]
        shares = gpus_per_rank(running, state.fleet.nodes)
        for name, summary in live.items():
            with state.failures.contained(Part.FLEET, job=name):
                if (job := state.fleet.jobs.get(name)) is not None:
                    share = shares.get(name, 1.0)
                    rows.append(_fleet_row(job, summary, now_s, now_unix_s, firing[name], share=share))
        connected = [agent.stream is not None for agent in state.agents if not agent.left]
    elsewhere = [alert for alert in alerts if alert["state"] == "firing" and alert["job"] is None]
    return {
        "jobs": rows,
        "alerts": [
            {"name": alert["name"], "summary": alert["annotations"].get("summary", "")}
            for alert in elsewhere[-_SHOWN_ALERTS:]
        ],
        "agents": {"count": len(connected), "connected": sum(connected)},
        "servers": {"count": len(servers), "up": sum(server["up"] is not False for server in servers)},
    }


def _outcome(job: JobState) -> str | None:
    """How it ended; None while it runs."""
    return job.lifetime.end.outcome.value if job.lifetime.end else None


def _fleet_row(
    job: JobState, found: JobSummary | None, now_s: float, now_unix_s: float, firing: int, *, share: float
) -> dict[str, Any]:
    """What a table of hundreds of jobs shows of each."""
    live = found or pending_summary(job.name)
    row = {
        **row_of(live),
        "name": job.name,
        "analyzed": found is not None,
        "nodes": len(job.nodes),
        "ended": job.ended,
        "outcome": _outcome(job),
        "silent_s": max(0.0, now_s - job.received_s),
        "step": job.steps.last_step,
        "train_steps": job.description.train_steps if job.description else None,
        "firing_alerts": firing,
        **_owned(job),
        "wasted_gpu_h": _wasted_gpu_h(job, live, now_unix_s, share),
    }
    if found is None:
        row["bottleneck"] |= _PENDING
    return row


def _owned(job: JobState) -> dict[str, str | None]:
    origin = job.ownership.origin
    if origin is None:
        return dict.fromkeys(("owner", "cluster", "namespace"))
    return {
        "owner": origin.user or origin.owner or None,
        "cluster": origin.cluster or None,
        "namespace": origin.namespace or None,
    }


def row_of(live: JobSummary) -> dict[str, Any]:
    """What of a row of schema perfd.fleet/2 follows from the summary."""
    worst = live.bottleneck
    return {
        "framework": live.framework,
        "parallel": msgspec.to_builtins(live.parallel),
        "step_time_s": live.step_time_s.median,
        "tokens_per_s": live.efficiency.tokens_per_s,
        "mfu_ratio": live.efficiency.mfu_ratio,
        "communication_ratio": live.communication.share_ratio,
        "stall_ratio": live.pipeline.stall_ratio,
        "bottleneck": {
            "kind": worst.kind.value,
            "name": worst.short_name,
            "sentence": worst.sentence,
            "certainty": worst.certainty,
            "may_be_over": worst.may_be_over,
            "gain_ratio": worst.gain_ratio,
            "culprits": msgspec.to_builtins(worst.culprits[:_SHOWN_CULPRITS]),
            "culprit_count": len(worst.culprits),
        },
    }


def _wasted_gpu_h(job: JobState, live: JobSummary, now_unix_s: float, share: float) -> float | None:
    """GPU-hours since the job began times the current cost of its bottleneck; None if either is unknown.

    `share` is the number of GPUs per rank now.
    """
    began, ranks, gain = job.attempts.started_unix_s, live.parallel.world_size, live.bottleneck.gain_ratio
    if began is None or not ranks or gain is None:
        return None
    ran_s = (job.ended_unix_s or now_unix_s) - began
    return max(0.0, ran_s) / 3600 * ranks * share * gain


def agent_json(
    agent: AgentState, node: NodeState | None, running: Sequence[JobState], now_s: float
) -> dict[str, Any]:
    """One entry of schema perfd.agents/1."""
    return {
        "agent_id": _shown_id(agent.agent_id),
        "node": agent.node,
        "connected": agent.stream is not None,
        "left": agent.left,
        "version": agent.perfd_version or None,
        "last_sequence": agent.last_sequence,
        "batches": agent.batches,
        "dropped_records": agent.dropped_records,
        "malformed_messages": agent.malformed_messages,
        "silent_s": max(0.0, now_s - agent.received_s),
        "clock_offset_s": agent.clock_offset_s,
        "lag_s": agent.lag_s,
        "capture_tools": [tool.value for tool in agent.capture_tools],
        "missing": gaps_of(agent, node, running),
    }


def _shown_id(agent_id: str) -> str:
    """A name for an agent that no caller can use as its identity."""
    return hashlib.sha256(agent_id.encode()).hexdigest()[:12]


def steps_of_lines(lines: Sequence[Mapping[str, Any]]) -> StepTable:
    """The table of entries of schema perfd.steps/1, as history keeps them."""

    def column(name: str) -> Any:  # noqa: ANN401  (an array of its kind)
        values: list[Any] = (
            [next(iter(one["losses"].values()), None) for one in lines]
            if name == "loss"
            else [one.get(name) for one in lines]
        )
        kind = {"step": np.int64, "steps_covered": np.int64, "warmup": bool}.get(name, np.float64)
        return np.array([math.nan if value is None else value for value in values], dtype=kind)

    return StepTable(**{field.name: column(field.name) for field in dataclasses.fields(StepTable)})


def gpu_readings(job: JobState, nodes: Mapping[str, NodeState], gpus: list[dict[str, Any]]) -> None:
    """Add the newest memory, temperature and clock to a job's GPUs, and their pipeline stage.

    Of a job that has ended, the newest while it trained: later ones are of an idle GPU, or of another job.
    """
    layout = job.description.parallel if job.description else ParallelLayout()
    until_unix_s = _trained_until(job) if job.ended else None
    newest = {name: _newest(nodes.get(name), until_unix_s) for name in {gpu["node"] for gpu in gpus}}
    for gpu in gpus:
        gpu["stage"] = _stage(gpu["rank"], layout)
        gpu.update(newest[gpu["node"]].get(gpu["gpu"], _NOTHING_READ))


def _trained_until(job: JobState) -> float:
    times = job.step_table().time_unix_s
    known = times[np.isfinite(times)]
    return min(float(known[-1]) if len(known) else math.inf, job.ended_unix_s or math.inf)


def _stage(rank: int | None, layout: ParallelLayout) -> int | None:
    try:
        return None if rank is None else coordinate(rank, "stage", layout)
    except CaptureError:
        return None


def _newest(node: NodeState | None, until_unix_s: float | None) -> dict[str, dict[str, float | None]]:
    """Of each GPU of a node what `gpu_readings` adds."""
    samples = node.readings.get(Scope.GPU) if node else None
    if node is None or samples is None:
        return {}
    if until_unix_s is None:
        metrics, values = list(samples.layout.metrics.known), samples.values
    else:
        history = node.readings.gpu_history
        times, data = history.since(until_unix_s - _LAST_S)
        data = data[times <= until_unix_s]
        if not len(data):
            return {}
        metrics, values = list(history.metrics), _last_known(data.astype(np.float64))
    entities = list(samples.layout.entities.known)
    # What came since the last sample is wider than the values.
    columns: dict[str, list[float]] = dict(zip(metrics, values.T.tolist(), strict=False))
    unknown = [math.nan] * len(entities)
    used, total, *others = (columns.get(name, unknown) for name in (_USED, _TOTAL, *_READ))
    return {
        gpu: {
            "memory_used_ratio": a / b if math.isfinite(a) and math.isfinite(b) and b else None,
            **{
                name: value if math.isfinite(value) else None for name, value in zip(_READ, read, strict=True)
            },
        }
        for gpu, a, b, *read in zip(entities, used, total, *others, strict=False)
    }


def _last_known(data: Floats) -> Floats:
    """(gpu, metric): the newest value that is known of (t, gpu, metric)."""
    found: Floats = data[-1].copy()
    for values in data[-2::-1]:
        np.copyto(found, values, where=np.isnan(found))
    return found


def step_lines(table: StepTable, first_step: int, limit: int) -> list[dict[str, Any]]:
    """Rows of a table as entries of schema perfd.steps/1."""
    start = int(np.searchsorted(table.step, first_step))
    columns = {
        field.name: getattr(table, field.name)[start : start + limit].tolist()
        for field in dataclasses.fields(StepTable)
    }
    loss = columns.pop("loss")
    lines = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for line, value in zip(lines, loss, strict=True):
        line["losses"] = {} if math.isnan(value) else {"loss": value}
    return lines
