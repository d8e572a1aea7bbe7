"""The gateway: the server for agents, the connection to NATS and HTTP put together, from start to stop."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import Metric

from perfd import __version__
from perfd.aggregator.audit import AuditLog
from perfd.aggregator.ingest import IngestThread, TelemetryServer
from perfd.clock import SystemClock
from perfd.config import GatewayConfig
from perfd.errors import ConfigError, PerfdError
from perfd.gateway.gateway_sessions import GatewaySessions
from perfd.metrics.catalog import GATEWAY_METRICS, families
from perfd.metrics.exposition import metrics_page, process_registry
from perfd.model import NodeMessage
from perfd.net import AccessControl, HttpServer, NatsConnector, Request, Response, ServerTls, text_response

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger(__name__)
_DESCRIBED = {metric.name: metric for metric in GATEWAY_METRICS}


class Gateway:
    """Serves agents from `start` to `stop`, in its own threads; keeps nothing.

    Raises `ConfigError` if `config` cannot work. Without a connection to NATS, agents keep their batches.
    """

    def __init__(self, config: GatewayConfig) -> None:
        if config.nats.partitions is not None and config.nats.partitions < 1:
            raise ConfigError("nats.partitions: it must be at least 1.")
        if config.agent_identity.any_job:
            raise ConfigError("agent_identity.any_job: configure it on the aggregators.")
        self._config = config
        self._connector = NatsConnector(config.nats, key="nats", name="perfd gateway")
        clock = SystemClock()
        audit = AuditLog(Path(config.audit_file) if config.audit_file else None, clock)
        self._sessions = GatewaySessions(config.nats, audit, clock, self._deliver)
        self._server = TelemetryServer(self._sessions, config.agent_identity)
        self._ingest = IngestThread(self._server)
        self._access = AccessControl(
            config.http_listen, read_token=config.http_read_token_file, hosts=config.http_hosts
        )
        self._tls = ServerTls(config.http_tls, key="http_tls") if config.http_tls else None
        self._registry = process_registry(self._collect)
        self._http: HttpServer | None = None
        self._lost = False
        """Whether the outage is logged."""
        self.grpc_address = ""
        """Where agents connect; empty before the start."""

    @property
    def http_address(self) -> str | None:
        """The address of /metrics, once started."""
        return self._http.address if self._http else None

    def start(self) -> None:
        """Listen and connect; raises `PerfdError` if an address is in use."""
        try:
            if self._config.http_listen is not None:
                routes = {"/metrics": self._serve_metrics, "/readyz": self._serve_readiness}
                guarded = self._access.guard(routes, open_to_all=("/readyz",))
                self._http = HttpServer(self._config.http_listen, guarded, tls=self._tls)
            self.grpc_address = self._ingest.start(self._config, self._keep_connected)
        except PerfdError:
            self.stop()
            raise

    def stop(self) -> None:
        """Close all streams; agents keep what is not acknowledged. May be called twice."""
        self._ingest.stop()
        if self._http is not None:
            self._http.close()

    async def _keep_connected(self) -> None:
        inbox = f"_INBOX_perfd_{secrets.token_hex(8)}"
        await self._connector.keep_connected(inbox, self._use, self._note_lost)

    async def _use(self, client: Client) -> None:
        self._sessions.client = client
        if self._lost:
            log.info("NATS is connected again.")
        self._lost = False
        await self._sessions.watch()

    def _note_lost(self, reason: str) -> None:
        self._sessions.lost(reason)
        if not self._lost:
            servers = ", ".join(self._config.nats.servers)
            log.warning(
                "NATS is unreachable: agents keep their batches.",
                extra={"servers": servers, "reason": reason},
            )
        self._lost = True

    def _deliver(self, agent_id: str, message: NodeMessage) -> None:
        self._server.send_to_agent(agent_id, message)

    def _serve_metrics(self, request: Request) -> Response:
        page = metrics_page(self._registry, request.headers)
        return Response(body=page.body, content_type=page.content_type)

    def _serve_readiness(self, _request: Request) -> Response:
        if self._sessions.client is None:
            return text_response("NATS is not connected.\n", 503)
        return text_response("ok\n")

    def _collect(self) -> list[Metric]:
        sessions = self._sessions
        open_sessions = tuple(sessions)
        values = [
            ("perfd_gateway_build_info", {"version": __version__}, 1.0),
            ("perfd_gateway_nats_connected", {}, sessions.client is not None),
            ("perfd_gateway_agents", {}, len(open_sessions)),
            ("perfd_gateway_batches_total", {}, sessions.batches),
            (
                "perfd_gateway_unacknowledged_messages",
                {},
                sum(session.publisher.waiting_messages for session in open_sessions),
            ),
            ("perfd_gateway_malformed_messages_total", {}, sessions.malformed_messages),
            *(
                ("perfd_gateway_rejected_total", {"bound": bound}, count)
                for bound, count in sorted(sessions.rejected_by.items())
            ),
        ]
        return families(values, _DESCRIBED.__getitem__)
