"""Jobs that only history has, in the lists of all jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from perfd.aggregator.history.ended_jobs import EndedJob
from perfd.aggregator.jobs.job_lifetime import JobEnd
from perfd.aggregator.web_api.api_documents import entry_of, row_of, wandb_run
from perfd.aggregator.web_api.charts import without_ranks
from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA
from perfd.analysis.diagnosis import JobSummary, from_json

_OWNED = dict.fromkeys(("owner", "cluster", "namespace"))


def stored_row(one: EndedJob, now_unix_s: float) -> dict[str, Any]:
    """A row of schema perfd.fleet/2; raises `msgspec.ValidationError` if the summary is of another kind."""
    live = _summary(one)
    return {
        **_known(one, now_unix_s),
        **row_of(live),
        "nodes": len(_nodes(live)),
        "state": "ended",
        "step": live.steps.last,
        "firing_alerts": 0,
        **_OWNED,
        "wasted_gpu_h": None,
    }


def stored_entry(one: EndedJob, now_unix_s: float, *, ranks: bool) -> dict[str, Any]:
    """An entry of schema perfd.jobs/2, with or without its ranks; raises as `stored_row`."""
    live = _summary(one)
    end = None if one.end is None else JobEnd.of(one.end)
    entry = {
        **entry_of(live),
        **_known(one, now_unix_s),
        "steps": {"count": live.steps.count, "last": live.steps.last, "doubt": live.steps.doubt},
        "attempt": one.attempt,
        "started_unix_s": one.started_unix_s,
        "ended_unix_s": end.time_unix_s if end else one.received_unix_s,
        "exit_code": end.exit_code if end else None,
        "nodes": _nodes(live),
        **_OWNED,
        "title": None,
        "array": None,
        "het_groups": {},
        "wandb": wandb_run(live.configuration.wandb_run),
        "log_silent_s": None,
        "failure": None,
    }
    return entry if ranks else without_ranks(entry)


def _summary(one: EndedJob) -> JobSummary:
    (summary,) = from_json({"schema": SUMMARY_SCHEMA, "jobs": [one.summary]})
    return summary


def _known(one: EndedJob, now_unix_s: float) -> dict[str, Any]:
    outcome = None if one.end is None else JobEnd.of(one.end).outcome
    return {
        "name": one.job,
        "analyzed": True,
        "ended": True,
        "outcome": msgspec.to_builtins(outcome),
        "silent_s": max(0.0, now_unix_s - one.received_unix_s),
        "train_steps": None,
    }


def _nodes(live: JobSummary) -> list[str]:
    return sorted({gpu.node for gpu in live.gpus})
