"""Requests to one inference server of this node."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perfd.errors import CaptureError, ConfigError, PerfdError
from perfd.net import BoundedConnection, BoundedTlsConnection, connect, split_address

_MAX_ANSWER_BYTES = 8 << 20
"""Largest answer, which is held in memory as a whole."""
_ALIVE_S = 2.0
"""To connect on this node, where nothing but a server that is gone takes longer."""
_LOOPBACK = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerResponse:
    """A server's response."""

    status: int
    text: str

    @property
    def words(self) -> str:
        """Its start, for use as a reason."""
        return " ".join(self.text.split())[:200] or "nothing"


class ServerClient:
    """Sends requests to one server; every method raises `CaptureError` without a response.

    Raises `ConfigError` if the address is invalid.
    """

    def __init__(
        self, address: str, *, authorization_file: Path | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """`address` is `host:port`, or `https://host:port`."""
        scheme, separator, rest = address.rpartition("://")
        if separator and scheme not in {"http", "https"}:
            raise ConfigError(f"{address!r} is not a server address: write host:port or https://host:port.")
        try:
            self._host, self._port = split_address(rest.rstrip("/"))
        except PerfdError as error:
            raise ConfigError(f"{address!r} is not a server address: {error}") from error
        self._secure = scheme == "https"
        self._authorization_file = authorization_file
        self._tls = tls
        self.address = address

    def serves(self, server: str) -> bool:
        """Whether a server's name in `perfd_server_*` is this one."""
        there = urlsplit(f"//{server}")
        try:
            same_port = there.port == self._port
        except ValueError:
            return False
        return same_port and _plain(there.hostname or "") == _plain(self._host)

    def ask(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> ServerResponse:
        """One request; `timeout_s` limits all of it, including name resolution and slow responses."""
        headers = self._authorization()
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        connection.deadline_s = time.monotonic() + timeout_s
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return ServerResponse(
                status=response.status, text=response.read(_MAX_ANSWER_BYTES).decode(errors="replace")
            )
        except (OSError, http.client.HTTPException) as error:
            raise CaptureError(f"The server at {self.address} does not answer: {error}.") from error
        finally:
            connection.close()

    def document(self, path: str, timeout_s: float) -> dict[str, Any]:
        """A JSON object; empty if the server has none there."""
        answer = self.ask("GET", path, timeout_s)
        try:
            document = json.loads(answer.text) if answer.status < 400 else {}
        except (ValueError, RecursionError):
            document = {}
        return document if isinstance(document, dict) else {}

    def listens(self) -> bool:
        """Whether a process accepts connections there, or is too busy to do so."""
        try:
            connect(self._host, self._port, time.monotonic() + _ALIVE_S).close()
        except TimeoutError:
            return True
        except OSError:
            return False
        return True

    def _connection(self) -> BoundedConnection:
        if self._secure:
            context = self._tls or ssl.create_default_context()
            return BoundedTlsConnection(self._host, self._port, context=context)
        return BoundedConnection(self._host, self._port)

    def _authorization(self) -> dict[str, str]:
        """Read each time, so that a changed key takes effect."""
        if self._authorization_file is None:
            return {}
        try:
            value = self._authorization_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CaptureError(f"authorization_file {self._authorization_file}: {error}.") from error
        return {"Authorization": value}


def _plain(host: str) -> str:
    return _LOOPBACK.get(host, host)
