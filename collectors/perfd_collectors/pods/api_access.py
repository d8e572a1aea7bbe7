"""How an agent in a pod reaches the API server."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

import msgspec

from perfd.errors import PerfdError
from perfd.net import BoundedConnection, BoundedTlsConnection

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_OK, _NOT_FOUND, _GONE = 200, 404, 410
"""HTTP's statuses."""


class OutdatedError(Exception):
    """The API server no longer knows where the watch was; a new list is needed."""


class NotFoundError(PerfdError):
    """The API server does not have the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Where the API server is, and what shows who we are; files are read before each request."""

    host: str
    port: int
    token_file: Path = _ACCOUNT / "token"
    ca_file: Path | None = _ACCOUNT / "ca.crt"
    """None: plain HTTP, for a proxy on this machine."""

    def connection(self) -> BoundedConnection:
        """A connection; raises `OSError` when the certificates cannot be read."""
        if self.ca_file is None:
            return BoundedConnection(self.host, self.port)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        return BoundedTlsConnection(self.host, self.port, context=context)

    def get(self, connection: BoundedConnection, path: str) -> HTTPResponse:
        """The answer to a request.

        Raises `OutdatedError`, and `PerfdError` with what the server says (`NotFoundError` for 404).
        """
        token = self.token_file.read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status == _GONE:
            raise OutdatedError
        if answer.status != _OK:
            said = msgspec.json.decode(answer.read(1 << 16), type=_Refusal)
            error = NotFoundError if answer.status == _NOT_FOUND else PerfdError
            raise error(said.message or f"The API server answers with status {answer.status}.")
        return answer


class _Refusal(msgspec.Struct):
    message: str = ""


def access_of_pod(environ: Mapping[str, str], account: Path = _ACCOUNT) -> ApiAccess | None:
    """What a pod with a service account's token has; None without."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal() or not (account / "token").exists():
        return None
    return ApiAccess(host=host, port=int(port), token_file=account / "token", ca_file=account / "ca.crt")
