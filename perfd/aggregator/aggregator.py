"""The aggregator: ingest, state, rounds of analysis, history and HTTP put together, from start to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

# `numpy.unique` imports it when it is first called: too late, if all file descriptors are in use.
import numpy.ma  # noqa: F401

from perfd.aggregator.analysis_loop import AnalysisLoop
from perfd.aggregator.api_answers import ApiAnswers
from perfd.aggregator.audit import AuditLog
from perfd.aggregator.captures import CaptureService, ReportStorage
from perfd.aggregator.history import StoredExporterMemory, configured_history, restore
from perfd.aggregator.http_endpoints import HttpEndpoints
from perfd.aggregator.ingest import Ingest, IngestThread, NatsReceiver, TelemetryServer
from perfd.aggregator.limits import Limits
from perfd.aggregator.nodes import DrainRunner, NodeMemory, drain_limits
from perfd.aggregator.partition import Partition
from perfd.aggregator.prometheus_charts import ChartQueries
from perfd.aggregator.series import self_registry
from perfd.aggregator.state import AggregatorState
from perfd.aggregator.web_api import (
    Webhook,
    routes,
    runbook_routes,
    silence_routes,
)
from perfd.clock import Clock, SystemClock, rounds_of_analysis, scheduled_unix_s
from perfd.config import AggregatorConfig, check_page_links
from perfd.errors import ConfigError, PerfdError
from perfd.exporters.alertmanager import create_silence, silence_body
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.model import NodeMessage
from perfd.net import Handler, ObjectStorage, is_loopback, split_address
from perfd.web.live_updates import Live

log = logging.getLogger(__name__)

_SHORTEST_ROUND_S = 0.05
"""Of the configuration: shorter rounds would do nothing but analyze. Chosen."""
_STOP_WITHIN_S = 10.0
"""How long the end may take: systemd, Kubernetes and batch scripts kill what takes much longer."""
_ROUND_GRACE_S = 2.0
"""How much of it may go to a round that is under way."""
_LAST_GRACE_S = 3.0
"""How much of it exporters and history have at least, whatever hung before."""


class Aggregator(ApiAnswers):
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
        partition: Partition | None = None,
    ) -> None:
        """With a `partition`, it handles only that partition's jobs, until the lease ends."""
        if not config.round_interval_s >= _SHORTEST_ROUND_S:
            raise ConfigError(f"round_interval_s: it must be at least {_SHORTEST_ROUND_S}.")
        if not config.max_jobs >= 1:
            raise ConfigError("max_jobs: it must be at least 1.")
        _require_tls(config)
        check_page_links(config.links)
        self._config = config
        self._manual = manual
        self._partition = partition
        self._round_due = threading.Event()
        """What waited in NATS has been taken, so that the next round need not wait; or the end."""
        clock = clock or SystemClock()
        audit = AuditLog(Path(config.audit_file) if config.audit_file else None, clock)
        self._audit = audit
        state = AggregatorState.empty(
            limits or Limits(jobs=config.max_jobs), audit, config.agent_identity.any_job
        )
        history = configured_history(config.history, partition)
        try:
            self._http = HttpEndpoints(config, audit, config.http_hosts)
            self._webhook = Webhook(config.webhook)
            stored = config.object_storage
            storage = (
                ReportStorage(
                    files=ObjectStorage(stored, key="object_storage"), max_bytes=stored.report_max_bytes
                )
                if stored
                else None
            )
            service = CaptureService(
                config.capture_profiles,
                clock,
                history,
                failures=state.failures,
                audit=audit,
                reports=config.capture_reports,
                on_alert=captures,
                live=self.live,
                peaks_file=config.analysis.gpu_peaks_file,
                storage=storage,
                recorded=partition is not None,
            )
            self._exporters = ExporterRegistry(
                config.exporters,
                clock,
                lambda name: None if history is None else StoredExporterMemory(history, name),
            )
            nodes = NodeMemory(
                state,
                history,
                half_life_days=config.nodes.half_life_days,
                drains=DrainRunner(drain_limits(config.nodes), audit) if config.nodes.drain else None,
                failed_captures=service.failed,
            )
            intake = Ingest(state, clock, history, service, partition)
            queries = ChartQueries(config.history, clock) if config.history.query_url else None
            self._nats = (
                NatsReceiver(config.nats, intake, partition, caught_up=self._round_due.set)
                if config.nats
                else None
            )
            registry = self_registry(
                state,
                history,
                service,
                self._exporters,
                self._webhook,
                nodes=nodes,
                nats=self._nats.progress if self._nats else None,
                partition=partition,
            )
            rounds = AnalysisLoop(
                config,
                state,
                clock,
                history,
                service,
                nodes=nodes,
                exporters=self._exporters,
                registry=registry,
                notify=self.send,
                partition=partition,
            )
        except PerfdError:
            if history is not None:
                history.close(_LAST_GRACE_S)
            raise
        super().__init__(
            state,
            clock,
            history,
            captures=service,
            nodes=nodes,
            rounds=rounds,
            registry=registry,
            queries=queries,
            links=config.links,
        )
        due = rounds_of_analysis(config.round_interval_s)
        self._server = TelemetryServer(intake, config.agent_identity, due)
        service.send_through(self.send)
        self._ingest = IngestThread(self._server)
        self._tick_thread = threading.Thread(target=self._tick_forever, name="perfd-rounds", daemon=True)
        self._stopping = threading.Event()
        self._grpc_address: str | None = None
        self.handlers: Mapping[str, Handler] = {}
        """HTTP handlers by path, without access control; empty before the start."""
        self._started = False
        self._live = Live()
        self._broken = False
        """Whether the newest round failed: that is logged when it begins."""

    @property
    def grpc_address(self) -> str:
        """Where agents connect, as `host:port`; only once started."""
        if self._grpc_address is None:
            raise PerfdError("The aggregator does not listen for agents.")
        return self._grpc_address

    @property
    def http_address(self) -> str | None:
        """Where /metrics and /api/v1 are, once started; None when they are not served."""
        return self._http.address

    @property
    def health_address(self) -> str | None:
        """Where only the health is, once started; None without `health_listen`."""
        return self._http.health_address

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
            served = {
                **routes(self, self._live),
                **runbook_routes(self._rounds.rules),
                **silence_routes(
                    self.alerts,
                    self._silence,
                    has_alertmanager=bool(self._config.exporters.alertmanager.urls),
                    has_token=self._config.http_token_file is not None,
                ),
            }
            self.handlers = served
            self._http.start(served, self._webhook.routes(self.receive_alerts))
            if self._partition is None:
                self._grpc_address = self._ingest.start(self._config)
            if self._nats is not None:
                self._nats.start()
        except PerfdError:
            self.stop()
            raise
        self._started = True
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
        self._round_due.set()
        deadline_s = monotonic() + _STOP_WITHIN_S
        self._live.close()
        if self._tick_thread.is_alive():
            self._tick_thread.join(_ROUND_GRACE_S)
        if self._nats is not None:
            self._nats.stop()
        self._ingest.stop()
        self._captures.stop()
        self._http.close()
        if self._tick_thread.is_alive():
            log.warning("A round of analysis did not end in time; the last summaries are not kept.")
        elif self._holds():
            self._rounds.store_all()
            self._rounds.export_last()
        deadline_s = max(deadline_s, monotonic() + _LAST_GRACE_S)
        if self._history is not None:
            # It writes while exporters deliver.
            self._history.finish()
        self._exporters.close(deadline_s - monotonic())
        self.close_charts()
        if self._history is not None:
            self._history.close(max(0.0, deadline_s - monotonic()))

    def tick(self, now_unix_s: float | None = None) -> None:
        """One round: derive, store series, evaluate rules, decide on captures. Returns when it is done."""
        self._rounds.run(self._clock.unix_ns() / 1e9 if now_unix_s is None else now_unix_s)
        self._live.notify()

    def unready(self) -> str | None:
        if not self._started or self._stopping.is_set():
            return "Agents are not served."
        return self.stale()

    @property
    def superseded(self) -> bool:
        """Whether another aggregator has written to its history since: this one can store nothing."""
        return self._history is not None and self._history.superseded

    def stream_problem(self) -> str | None:
        """That NATS takes or delivers nothing, in a sentence; None if all is well."""
        return self._nats.progress.stream_problem if self._nats is not None else None

    def _silence(self, labels: Mapping[str, str], duration_s: float, by: str, comment: str) -> str:
        config = self._config.exporters.alertmanager
        now_unix_s = self._clock.unix_ns() / 1e9
        sent = {**config.external_labels, **labels}
        silence = create_silence(config, silence_body(sent, now_unix_s, duration_s, by=by, comment=comment))
        # The name is not checked: with the token any may be given.
        alert = labels.get("alertname", "")
        self._audit.did("alert silenced", actor="request", by=by, silence=silence, alert=alert)
        return silence

    def send(self, node: str, message: NodeMessage) -> None:
        """Send a message to the agent of a node; nothing when it is not there."""
        with self._state.lock:
            message = self._state.fleet.addressed(node, message)
        self._server.send(node, message)
        if self._nats is not None:
            self._nats.send(node, message)

    def _tick_forever(self) -> None:
        interval_s = self._config.round_interval_s
        schedule = rounds_of_analysis(interval_s)
        while True:
            # A long round leaves out the next one: batches must be taken, too.
            schedule.skip(monotonic() + interval_s / 2)
            due_s = schedule.next_s
            self._round_due.wait(due_s - monotonic())
            self._round_due.clear()
            if self._stopping.is_set():
                return
            self._try_tick(scheduled_unix_s(due_s, self._clock))

    def _holds(self) -> bool:
        return self._partition is None or self._partition.held()

    def _try_tick(self, now_unix_s: float | None = None) -> None:
        if self._partition is not None and not self._partition.serves():
            # Another aggregator may hold the partition: alerts from this one's old data would be wrong.
            return
        try:
            self.tick(now_unix_s)
            self._broken = False
        except Exception:
            if not self._broken:
                log.exception("A round of analysis failed; the next one tries again.")
            self._broken = True


def _require_tls(config: AggregatorConfig) -> None:
    """Raises `ConfigError` if tokens and pages would cross the network in plain text by accident."""
    if config.http_listen is None or config.http_tls is not None or config.allow_plaintext:
        return
    if not is_loopback(split_address(config.http_listen)[0]):
        raise ConfigError(
            f"http_listen: {config.http_listen} can be reached from other machines, and without TLS pages "
            "and tokens are sent in plain text. Configure `http_tls`, or set `allow_plaintext: true`."
        )
