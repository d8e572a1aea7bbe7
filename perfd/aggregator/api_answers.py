"""What the API answers: the newest numbers, jobs, alerts, nodes and captures as its documents."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from perfd.aggregator.alerts import Decision, job_of
from perfd.aggregator.analysis_loop import AnalysisLoop
from perfd.aggregator.captures import CaptureService
from perfd.aggregator.failures import Part
from perfd.aggregator.history import EndedJob, HistoryStore
from perfd.aggregator.job_charts import JobCharts
from perfd.aggregator.nodes import NodeMemory, nodes_json
from perfd.aggregator.prometheus_charts import ChartQueries
from perfd.aggregator.series import SELF, PageRenderer
from perfd.aggregator.state import AggregatorState
from perfd.aggregator.web_api import (
    agent_json,
    fleet_json,
    gpu_readings,
    job_json,
    running_by_node,
    servers_json,
    step_lines,
    stored_entry,
    stored_row,
    trend,
    without_ranks,
)
from perfd.analysis.diagnosis import JobSummary
from perfd.capture.capture_routes import StartBody
from perfd.capture.policy.capture_json import to_json
from perfd.capture.policy.policy_events import ManualRequest
from perfd.clock import Clock
from perfd.config import PageLinksConfig
from perfd.errors import CaptureError
from perfd.metrics.exposition import MetricsPage, metrics_page
from perfd.metrics.series import SeriesFrame
from perfd.model import Alert

_MOST_MADE = 16
"""Jobs that one request for many analyzes; the next rounds analyze the rest."""


class ApiAnswers(JobCharts):
    """Answers from the state and the newest round, from any thread; an `ApiSource`."""

    def __init__(
        self,
        state: AggregatorState,
        clock: Clock,
        history: HistoryStore | None,
        *,
        captures: CaptureService,
        nodes: NodeMemory,
        rounds: AnalysisLoop,
        registry: CollectorRegistry,
        queries: ChartQueries | None = None,
        links: PageLinksConfig,
    ) -> None:
        super().__init__(state, clock, history, rounds=rounds, queries=queries)
        self._captures = captures
        self._nodes = nodes
        self._registry = registry
        self._links = links
        self._renderers: dict[str, PageRenderer] = {}
        self._render_lock = threading.Lock()

    def links(self) -> Mapping[str, Mapping[str, str]]:
        """Configured links by place and name."""
        found: Mapping[str, Mapping[str, str]] = msgspec.to_builtins(self._links)
        return found

    def jobs(self) -> list[str]:
        return self._rounds.jobs()

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """The summary of one job, or of all, over the whole job.

        While a job runs, its findings are those of its newest steps, as the page and its alerts have them.
        """
        return [self._with_newest_findings(one) for one in self._rounds.summary(job)]

    def summary_since(self, job: str, since_unix_s: float) -> JobSummary | None:
        """The summary of a job from a moment on, of what is in memory; None when it is not."""
        return self._rounds.summary_since(job, since_unix_s)

    def live(self, job: str) -> JobSummary | None:
        """The newest numbers of a job, over `analysis.window_steps` steady steps."""
        return self._rounds.live(job)

    def frames(self) -> Mapping[str, SeriesFrame]:
        """All series of the newest round, by group."""
        return self._rounds.series.newest

    def page(self) -> bytes:
        """The page for Prometheus: series as of the newest round, and the aggregator itself as it is now."""
        return self.metrics({}).body

    def metrics(self, headers: Mapping[str, str]) -> MetricsPage:
        """The same in the format of the headers of a request, with names in lower case."""
        return metrics_page(self._registry, headers, self._rendered)

    def _rendered(self, openmetrics: bool) -> bytes:
        frames = self._rounds.series.newest
        with self._render_lock:
            return b"".join(
                self._renderer_of(group).render(frame, openmetrics=openmetrics)
                for group, frame in frames.items()
                if group != SELF
            )

    def _renderer_of(self, group: str) -> PageRenderer:
        return self._renderers.setdefault(group, PageRenderer(self._rounds.names.describe))

    def overview(self, job: str | None = None, *, ranks: bool = True) -> list[dict[str, Any]]:
        """One entry per job with its newest numbers, or that of one job, of schema perfd.jobs/2.

        Without `ranks` it has no lists of GPUs and ranks, but `gpu_count`. It waits for no round: a job
        that was never analyzed has no numbers while one is at work.
        """
        if job is None:
            return self.newest(self.jobs(), ranks=ranks)
        self._rounds.live(job)
        return [entry] if (entry := self._overview_of(job, ranks=ranks)) is not None else []

    def newest(self, jobs: Sequence[str], *, ranks: bool = True) -> list[dict[str, Any]]:
        """The entries of these jobs as of the newest rounds, in their order, without those that are gone."""
        new = self._new(jobs)
        self._rounds.refresh(jobs if len(jobs) <= _MOST_MADE else new[:_MOST_MADE])
        return [entry for name in jobs if (entry := self._overview_of(name, ranks=ranks)) is not None]

    def _new(self, jobs: Sequence[str]) -> list[str]:
        """Those without numbers yet."""
        return [name for name in jobs if self._rounds.newest(name) is None]

    def fleet(self) -> dict[str, Any]:
        """A short row per job, and the numbers of agents and servers, of schema perfd.fleet/2."""
        names = self.jobs()
        # From the last round: analyzing thousands of jobs for one request would take a minute.
        self._rounds.refresh(self._new(names)[:_MOST_MADE])
        live = {name: self._rounds.newest(name) for name in names}
        now_s, now_unix_s = self._clock.monotonic_s(), self._clock.unix_ns() / 1e9
        alerts, servers = self._rounds.alerts(), self.servers()
        fleet = fleet_json(self._state, live, alerts, servers, now_s=now_s, now_unix_s=now_unix_s)
        return {**fleet, "stored": self._history is not None}

    def stored_rows(
        self, words: Sequence[str], *, offset: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Rows of perfd.fleet/2 of the jobs that only history has, the newest first, and how many there are.

        Raises `PerfdError` if history cannot be read.
        """
        return self._stored(words, offset, limit, stored_row)

    def stored_entries(
        self, words: Sequence[str], *, offset: int, limit: int, ranks: bool
    ) -> tuple[list[dict[str, Any]], int]:
        """The same as entries of perfd.jobs/2."""
        return self._stored(words, offset, limit, partial(stored_entry, ranks=ranks))

    def _stored(
        self,
        words: Sequence[str],
        offset: int,
        limit: int,
        shown: Callable[[EndedJob, float], dict[str, Any]],
    ) -> tuple[list[dict[str, Any]], int]:
        if self._history is None:
            return [], 0
        now_unix_s = self._clock.unix_ns() / 1e9
        jobs, count = self._history.ended_jobs(words, self.jobs(), offset=offset, limit=limit)
        found = []
        for one in jobs:
            # That of another version is left out.
            with contextlib.suppress(msgspec.ValidationError):
                found.append(shown(one, now_unix_s))
        return found, count

    def trend(self, job: str) -> list[float]:
        with self._state.lock:
            known = self._state.fleet.jobs.get(job)
            table = known.step_table() if known else None
        return [] if table is None else trend(table.time_unix_s, table.step_time_s)

    def nodes(self, *, blamed_only: bool = True, node: str | None = None) -> list[dict[str, Any]]:
        """What nodes were blamed for, of schema perfd.nodes/1, the most suspect first."""
        return nodes_json(self._nodes.standings(), self._nodes.drains(), blamed_only=blamed_only, node=node)

    def servers(self) -> list[dict[str, Any]]:
        """Serving engines with the alerts that fire about them, of schema perfd.servers/2."""
        return servers_json(self._state, self.alerts(), self._clock.monotonic_s())

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that fired, newest first, of schema perfd.alerts/1."""
        return list(reversed(self._rounds.alerts()))

    def agents(self) -> list[dict[str, Any]]:
        """Agents, of schema perfd.agents/1."""
        now_s = self._clock.monotonic_s()
        with self._state.lock:
            nodes, running = self._state.fleet.nodes, running_by_node(self._state.fleet.jobs.values())
            return [
                agent_json(agent, nodes.get(agent.node), running.get(agent.node, ()), now_s)
                for agent in self._state.agents
            ]

    def captures(self) -> list[dict[str, Any]]:
        """Captures, oldest first, of schema perfd.capture/1."""
        return self._captures.list()

    def stored_file(self, url: str, max_bytes: int) -> bytes:
        return self._captures.stored_file(url, max_bytes)

    def file_link(self, capture_id: str, name: str) -> tuple[str, float]:
        return self._captures.file_link(capture_id, name)

    def start_capture(self, body: StartBody) -> Mapping[str, Any]:
        """Begin a capture by hand; raises `CaptureError` when the request is wrong."""
        view = self._rounds.view(body.job)
        if view is None:
            raise CaptureError(
                f"There is no job or server {body.job!r}; `perfd status` shows jobs, /api/v1/servers servers."
            )
        request = ManualRequest(
            capture_id=body.id or f"manual-{uuid.uuid4().hex[:12]}",
            job=view,
            profile=body.profile,
            ranks=body.ranks,
            steps=body.steps,
            max_duration_s=body.max_duration_s,
            asked_by=body.by,
        )
        return to_json(self._captures.request(request))

    def receive_alerts(self, alerts: Sequence[Alert]) -> list[Decision]:
        """Decide on alerts that an Alertmanager sent, in order."""
        known = self._rounds.jobs()
        wanted = {job_of(alert, known) for alert in alerts if not alert.resolved}
        views = {name: self._rounds.view(name) if name in wanted else None for name in known}
        named = {alert.server for alert in alerts if alert.server and not alert.resolved}
        servers = {name: self._rounds.view(name) for name in named}
        return self._captures.on_received(alerts, views, servers)

    def cancel_capture(self, capture_id: str, reason: str) -> Mapping[str, Any]:
        """End a capture by hand; raises `CaptureError` when there is none of that id."""
        return to_json(self._captures.cancel(capture_id, reason))

    def steps(self, job: str, first_step: int, limit: int) -> list[dict[str, Any]] | None:
        """Progress lines of a job, from history where there is one; None for a job that is not known."""
        if self._history is not None:
            lines = self._history.steps(job, first_step=first_step, limit=limit)
            return lines if lines or job in self.jobs() else None
        with self._state.lock:
            known = self._state.fleet.jobs.get(job)
            table = known.step_table() if known else None
        return None if table is None else step_lines(table, first_step, limit)

    def stored_summary(self, job: str) -> Mapping[str, Any] | None:
        return self._history.summary(job) if self._history else None

    def history_problem(self) -> str | None:
        return self._history.problem if self._history else None

    def jobs_problem(self) -> str | None:
        with self._state.lock:
            return self._state.fleet.jobs.problem

    def stale(self) -> str | None:
        age_s = self._rounds.stale_s
        if age_s is None:
            return None
        return f"No analysis round has finished for {age_s:.0f} s; the log says why."

    def _with_newest_findings(self, summary: JobSummary) -> JobSummary:
        with self._state.lock:
            job = self._state.fleet.jobs.get(summary.name)
            running = job is not None and not job.ended
        live = self._rounds.live(summary.name) if running else None
        return replace(summary, findings=live.findings) if live else summary

    def _overview_of(self, name: str, *, ranks: bool) -> dict[str, Any] | None:
        live = self._rounds.newest(name)
        now_s = self._clock.monotonic_s()
        with self._state.lock:
            job = self._state.fleet.jobs.get(name)
            if job is None:
                return None
            with self._state.failures.contained(Part.OVERVIEW, job=name):
                failure = self._state.failures.of_job(name)
                if not ranks:
                    # Thousands of them need not be made to be left out.
                    nobody = live and replace(live, gpus=(), slowdowns=(), nccl=replace(live.nccl, ranks=()))
                    entry = without_ranks(job_json(job, nobody, now_s, failure))
                    return entry | {"gpu_count": len(live.gpus) if live else 0}
                entry = job_json(job, live, now_s, failure)
                gpu_readings(job, self._state.fleet.nodes, entry["gpus"])
                return entry
        return None
