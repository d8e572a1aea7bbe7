"""Serves the tools over streamable HTTP, to clients that show a token.

How many connections there are is limited, and how long each may wait for its client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from perfd.errors import ConfigError, PerfdError, reason_of
from perfd.mcp.http_access import HttpAccess, Role, allowed_hosts
from perfd.net import split_address

MOST_CONNECTIONS = 64
"""At one time; a new one replaces the longest idle one. Chosen."""
_REQUEST_S = 15.0
"""For a request to begin on a new connection and be whole, and for each piece of an answer to be taken."""
_RECEIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
log = logging.getLogger(__name__)
PATH = "/mcp"
_MOST_BODY_BYTES = 64 * 1024
"""Of a request: every argument at its longest fits."""
_GRACE_S = 5
"""For requests that are answered when the server stops."""


class ClientConnection(H11Protocol):
    """A connection that makes room for others while its client sends nothing.

    uvicorn ends a connection only between two requests: without this, clients that connect and stay silent
    could keep all others out, before any of them shows a token.
    """

    waits_since_s: float | None = None
    """Of the loop's clock, while the rest of a request is expected."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MOST_CONNECTIONS:
            self._make_room()
        super().connection_made(transport)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_REQUEST_S * 1000))
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._received()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in _RECEIVED:
            self._received()

    def on_response_complete(self) -> None:
        self._expect()
        super().on_response_complete()
        if self.conn.their_state in _RECEIVED:
            # The next request was there already.
            self._received()

    def _expect(self) -> None:
        self._received()
        self.waits_since_s = self.loop.time()
        self._deadline = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _received(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.waits_since_s = self._deadline = None

    def _make_room(self) -> None:
        """Close the connection that has waited for its client for longest; none if each is answered."""
        waiting = [
            (one.waits_since_s, number, one)
            for number, one in enumerate(self.connections)
            if isinstance(one, ClientConnection) and one.waits_since_s is not None
        ]
        if waiting:
            _, _, longest = min(waiting)
            longest.transport.abort()
            # `connection_lost` comes with the loop's next turn.
            self.connections.discard(longest)


def may_capture(request: object) -> bool:
    """Whether a request of this server may start captures."""
    return isinstance(request, Request) and request.scope.get("perfd_role") == Role.CAPTURE


def serve_http(
    server: Server[dict[str, Any]], listen: str, access: HttpAccess, serving: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM; `serving` gets the address. Raises `PerfdError`."""
    hosts = allowed_hosts(listen, access)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=hosts is not None,
        allowed_hosts=hosts or [],
        allowed_origins=[f"http://{host}" for host in hosts or []],
    )
    # Without sessions, each request is judged by the token that it shows.
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=_MOST_BODY_BYTES,
        transport_security=security,
    )
    config = uvicorn.Config(
        _Guard(app, access),
        http=ClientConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        # uvicorn refuses at this number, and the newest one has its place.
        limit_concurrency=MOST_CONNECTIONS + 1,
        timeout_graceful_shutdown=_GRACE_S,
    )
    with _listening(listen) as bound:
        host, port = bound.getsockname()[:2]
        serving(f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
        uvicorn.Server(config).run(sockets=[bound])


class _Guard:
    """Refuses requests without a role, and puts the role of the others where tools find it."""

    def __init__(self, app: ASGIApp, access: HttpAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal: JSONResponse | None = None
        try:
            role = self._access.role_of(Request(scope).headers.get("authorization", ""))
            if role is None:
                refusal = _error(HTTPStatus.UNAUTHORIZED, "Show a bearer token of the aggregator's API.")
        except ConfigError as error:
            log.error("A token cannot be read.", extra={"error": str(error)})  # noqa: TRY400  (the sentence says all)
            role = None
            refusal = _error(HTTPStatus.SERVICE_UNAVAILABLE, "A token cannot be read; the log says why.")
        if refusal is None:
            await self._app({**scope, "perfd_role": role}, receive, send)
        else:
            await refusal(scope, receive, send)


def _listening(listen: str) -> socket.socket:
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise PerfdError(f"Cannot listen on {listen}: {reason_of(error)}.") from error


def _error(status: HTTPStatus, sentence: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
    return JSONResponse({"error": sentence}, status, headers)
