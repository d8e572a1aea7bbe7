"""The HTTP servers of an aggregator or of a member of a group: its routes, and its health apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.config import AggregatorConfig
from perfd.net import AccessControl, Handler, HttpServer, ServerTls

_HEALTH = ("/api/v1/healthz", "/api/v1/readyz")
_HEALTH_CONNECTIONS = 32
"""Probes open a few at a time."""


class HttpEndpoints:
    """Listens from `start` to `close`. Raises `ConfigError` if tokens or certificates cannot be used."""

    def __init__(self, config: AggregatorConfig, audit: AuditLog, hosts: Sequence[str]) -> None:
        self._config = config
        self._access = AccessControl(
            config.http_listen,
            capture_token=config.http_token_file,
            read_token=config.http_read_token_file,
            hosts=hosts,
            refused=lambda reason, path: audit.refused(Refusal.HTTP, reason, actor="http", about=path),
        )
        self._tls = ServerTls(config.http_tls, key="http_tls") if config.http_tls else None
        self._http: HttpServer | None = None
        self._health: HttpServer | None = None

    @property
    def address(self) -> str | None:
        """Where the routes are, once started; None where they are not served."""
        return self._http.address if self._http else None

    @property
    def health_address(self) -> str | None:
        """Where only the health is, once started; None without `health_listen`."""
        return self._health.address if self._health else None

    @property
    def url(self) -> str:
        """What others reach the routes at, once started."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    def start(self, routes: Mapping[str, Handler], unguarded: Mapping[str, Handler] | None = None) -> None:
        """Listen; raises `PerfdError` if an address is in use. `unguarded` routes check access themselves."""
        config = self._config
        if config.http_listen is not None:
            guarded = self._access.guard(routes, open_to_all=_HEALTH)
            self._http = HttpServer(config.http_listen, {**guarded, **(unguarded or {})}, tls=self._tls)
        if config.health_listen is not None:
            health = {path: routes[path] for path in _HEALTH}
            self._health = HttpServer(config.health_listen, health, connections=_HEALTH_CONNECTIONS)

    def close(self) -> None:
        """Free the addresses; legal before the start."""
        for server in (self._http, self._health):
            if server is not None:
                server.close()
