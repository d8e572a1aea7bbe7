"""The aggregator: ingest, state, rounds of analysis, history and HTTP put together."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from perfd.aggregator.alerts import Decision, job_of
from perfd.aggregator.analysis_loop import AnalysisLoop
from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.captures import CaptureService
from perfd.aggregator.failures import Part
from perfd.aggregator.history import HistoryStore, restore
from perfd.aggregator.ingest import Ingest, IngestThread, TelemetryServer
from perfd.aggregator.limits import Limits
from perfd.aggregator.nodes import DrainRunner, NodeMemory, drain_limits, failed_captures, nodes_json
from perfd.aggregator.series import SELF, PageRenderer, self_registry
from perfd.aggregator.state import AggregatorState
from perfd.aggregator.web_api import (
    Webhook,
    agent_json,
    fleet_json,
    job_json,
    progress_columns,
    routes,
    servers_json,
    step_lines,
)
from perfd.analysis.diagnosis import JobSummary
from perfd.capture.capture_routes import StartBody
from perfd.capture.policy.capture_json import to_json
from perfd.capture.policy.policy_events import ManualRequest
from perfd.clock import Clock, SystemClock
from perfd.config import AggregatorConfig
from perfd.errors import CaptureError, ConfigError, PerfdError
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.metrics.exposition import MetricsPage, metrics_page
from perfd.metrics.series import SeriesFrame
from perfd.model import Alert, CaptureCancel, CaptureRequest
from perfd.net import AccessControl, HttpServer, ServerTls, is_loopback, split_address
from perfd.web.live_updates import Live

log = logging.getLogger(__name__)

_HEALTH = ("/api/v1/healthz", "/api/v1/readyz")
_HEALTH_CONNECTIONS = 32
"""Probes open a few at a time."""
_SHORTEST_ROUND_S = 0.05
_STOP_WITHIN_S = 10.0
"""How long the end may take: systemd, Kubernetes and batch scripts kill what takes much longer."""
_ROUND_GRACE_S = 2.0
"""How much of it may go to a round that is under way."""
_LAST_GRACE_S = 3.0
"""How much of it exporters and history have at least, whatever hung before."""


class Aggregator:
    """Serves agents from `start` to `stop`, in its own threads.

    A round of analysis runs each `round_interval_s`, or with `manual` only when the owner calls
    `tick`, and `clock` may then be a virtual one. Without `captures`, alerts of its own rules start
    none: a recording has no processes to trace. Raises `ConfigError`, `RulesError` or
    `PerfdError` at once when the configuration, the rules or the history cannot be used.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        clock: Clock | None = None,
        *,
        manual: bool = False,
        captures: bool = True,
        limits: Limits | None = None,
    ) -> None:
        if not config.round_interval_s >= _SHORTEST_ROUND_S:
            raise ConfigError(f"round_interval_s: it must be at least {_SHORTEST_ROUND_S}.")
        _require_tls(config)
        self._config = config
        self._clock = clock or SystemClock()
        self._manual = manual
        audit = AuditLog(Path(config.audit_file) if config.audit_file else None, self._clock)
        self._state = AggregatorState.empty(limits or Limits(), audit, config.agent_identity.any_job)
        self._history = (
            HistoryStore(Path(config.history.path), max_bytes=config.history.max_bytes)
            if config.history.path
            else None
        )
        try:
            self._access = AccessControl(
                config.http_listen,
                capture_token=config.http_token_file,
                read_token=config.http_read_token_file,
                hosts=config.http_hosts,
                refused=lambda reason, path: audit.refused(Refusal.HTTP, reason, actor="http", about=path),
            )
            self._tls = ServerTls(config.http_tls, key="http_tls") if config.http_tls else None
            self._webhook = Webhook(config.webhook)
            self._captures = CaptureService(
                config.capture_profiles,
                self._clock,
                self._history,
                failures=self._state.failures,
                audit=audit,
                reports=config.capture_reports,
                on_alert=captures,
                live=self.live,
                peaks_file=config.analysis.gpu_peaks_file,
            )
            self._exporters = ExporterRegistry(config.exporters, self._clock)
            self._nodes = NodeMemory(
                self._state,
                self._history,
                half_life_days=config.nodes.half_life_days,
                drains=DrainRunner(drain_limits(config.nodes), audit) if config.nodes.drain else None,
                failed_captures=lambda: failed_captures(self._captures.failed()),
            )
            self._registry = self_registry(
                self._state, self._history, self._captures, self._exporters, self._webhook, nodes=self._nodes
            )
            self._rounds = AnalysisLoop(
                config,
                self._state,
                self._clock,
                self._history,
                self._captures,
                nodes=self._nodes,
                exporters=self._exporters,
                registry=self._registry,
            )
        except PerfdError:
            self._close_history(_LAST_GRACE_S)
            raise
        self._renderers: dict[str, PageRenderer] = {}
        self._render_lock = threading.Lock()
        self._server = TelemetryServer(
            Ingest(self._state, self._clock, self._history), self._captures, config.agent_identity
        )
        self._captures.send_through(self._send)
        self._ingest = IngestThread(self._server)
        self._tick_thread = threading.Thread(target=self._tick_forever, name="perfd-rounds", daemon=True)
        self._stopping = threading.Event()
        self._grpc_address: str | None = None
        self._http: HttpServer | None = None
        self._health: HttpServer | None = None
        self._live = Live()
        self._broken = False
        """Whether the newest round failed: that is logged when it begins."""

    @property
    def grpc_address(self) -> str:
        """Where agents connect, as `host:port`; only once started."""
        if self._grpc_address is None:
            raise PerfdError("The aggregator has no address before it is started.")
        return self._grpc_address

    @property
    def http_address(self) -> str | None:
        """Where /metrics and /api/v1 are, once started; None when they are not served."""
        return self._http.address if self._http else None

    @property
    def health_address(self) -> str | None:
        """Where only the health is, once started; None without `health_listen`."""
        return self._health.address if self._health else None

    @property
    def state(self) -> AggregatorState:
        """The state, for tests and measurements; hold its lock."""
        return self._state

    def start(self) -> None:
        """Restore history and listen; raises `PerfdError` when an address is taken, and stops again."""
        try:
            if self._history is not None:
                restore(
                    self._state,
                    self._history,
                    now_unix_s=self._clock.unix_ns() / 1e9,
                    now_s=self._clock.monotonic_s(),
                    forgotten_after_s=self._config.job_forgotten_after_s,
                )
            served = routes(self, self._live)
            if self._config.http_listen is not None:
                self._http = HttpServer(
                    self._config.http_listen,
                    {
                        **self._access.guard(served, open_to_all=_HEALTH),
                        **self._webhook.routes(self.receive_alerts),
                    },
                    tls=self._tls,
                )
            if self._config.health_listen is not None:
                health = {path: served[path] for path in _HEALTH}
                self._health = HttpServer(self._config.health_listen, health, connections=_HEALTH_CONNECTIONS)
            self._grpc_address = self._ingest.start(self._config)
        except PerfdError:
            self.stop()
            raise
        # A page that is scraped before the first second is over is not empty.
        self._try_tick()
        if not self._manual:
            self._tick_thread.start()

    def stop(self) -> None:
        """Close the streams, write what history has to keep, and free everything. Legal twice.

        It takes about ten seconds at most, whatever hangs, a disk or another system.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        deadline_s = monotonic() + _STOP_WITHIN_S
        self._live.close()
        if self._tick_thread.is_alive():
            self._tick_thread.join(_ROUND_GRACE_S)
        self._ingest.stop()
        self._captures.stop()
        for server in (self._http, self._health):
            if server is not None:
                server.close()
        if self._tick_thread.is_alive():
            log.warning("A round of analysis did not end in time; the last summaries are not kept.")
        else:
            self._rounds.store_all()
            self._rounds.export_last()
        deadline_s = max(deadline_s, monotonic() + _LAST_GRACE_S)
        if self._history is not None:
            # It writes while exporters deliver.
            self._history.finish()
        self._exporters.close(deadline_s - monotonic())
        self._close_history(max(0.0, deadline_s - monotonic()))

    def tick(self, now_unix_s: float | None = None) -> None:
        """One round: derive, store series, evaluate rules, decide on captures. Returns when it is done."""
        self._rounds.run(self._clock.unix_ns() / 1e9 if now_unix_s is None else now_unix_s)
        self._live.tell()

    def jobs(self) -> list[str]:
        """Names of the jobs in memory."""
        return self._rounds.jobs()

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """The summary of one job, or of all, over the whole job."""
        return self._rounds.summary(job)

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
        """The same in the format and encoding of the headers of a request, with names in lower case."""
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

    def overview(self, job: str | None = None) -> list[dict[str, Any]]:
        """One entry per job with its newest numbers, or that of one job, of schema perfd.jobs/2."""
        names = self.jobs() if job is None else [job]
        return [entry for name in names if (entry := self._overview_of(name)) is not None]

    def fleet(self) -> dict[str, Any]:
        """A short row per job, and the numbers of agents and servers, of schema perfd.fleet/2."""
        live = {name: summary for name in self.jobs() if (summary := self._rounds.live(name)) is not None}
        return fleet_json(self._state, live, self._rounds.alerts(), self.servers(), self._clock.monotonic_s())

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
            return [agent_json(agent, now_s) for agent in self._state.agents]

    def captures(self) -> list[dict[str, Any]]:
        """Captures, oldest first, of schema perfd.capture/1."""
        return self._captures.list()

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
            table = known.steps.table() if known else None
        return None if table is None else step_lines(table, first_step, limit)

    def series(self, job: str, points: int) -> dict[str, list[Any]] | None:
        """How step time and MFU of a job went, of schema perfd.series/1; None when it is not in memory."""
        live = self._rounds.live(job)
        with self._state.lock:
            known = self._state.fleet.jobs.get(job)
            if known is None or live is None:
                return None
            table, events = known.steps.table(), tuple(known.events)
        return progress_columns(table, events, live, points)

    def stored_summary(self, job: str) -> Mapping[str, Any] | None:
        """The summary of a job that only history knows."""
        return self._history.summary(job) if self._history else None

    def unready(self) -> str | None:
        """Why agents are not served or numbers are old, in a sentence; None if all is well."""
        if self._grpc_address is None or self._stopping.is_set():
            return "Agents are not served."
        return self.stale()

    def stale(self) -> str | None:
        """Why the numbers are old, in a sentence; None if they are current."""
        age_s = self._rounds.stale_s
        if age_s is None:
            return None
        return f"No round of analysis was finished for {age_s:.0f} s; the log says why."

    def _send(self, node: str, message: CaptureRequest | CaptureCancel) -> None:
        with self._state.lock:
            message = self._state.fleet.addressed(node, message)
        self._server.send(node, message)

    def _overview_of(self, name: str) -> dict[str, Any] | None:
        live = self._rounds.live(name)
        now_s = self._clock.monotonic_s()
        with self._state.lock:
            job = self._state.fleet.jobs.get(name)
            if live is None or job is None:
                return None
            with self._state.failures.contained(Part.OVERVIEW, job=name):
                return job_json(job, live, now_s, self._state.failures.of_job(name))
        return None

    def _tick_forever(self) -> None:
        while not self._stopping.wait(self._config.round_interval_s):
            self._try_tick()

    def _try_tick(self) -> None:
        try:
            self.tick()
            self._broken = False
        except Exception:
            if not self._broken:
                log.exception("A round of analysis failed; the next one tries again.")
            self._broken = True

    def _close_history(self, within_s: float) -> None:
        if self._history is not None:
            self._history.close(within_s)


def _require_tls(config: AggregatorConfig) -> None:
    """Raises `ConfigError` if tokens and pages would cross the network in plain text by accident."""
    if config.http_listen is None or config.http_tls is not None or config.allow_plaintext:
        return
    if not is_loopback(split_address(config.http_listen)[0]):
        raise ConfigError(
            f"http_listen: {config.http_listen} can be reached from other machines, and without TLS pages "
            "and tokens are sent in plain text. Configure `http_tls`, or set `allow_plaintext: true`."
        )
