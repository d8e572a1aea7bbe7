"""Configuration of requests to another server."""

from __future__ import annotations

from perfd.config.unknown_keys import Strict


class HttpClientConfig(Strict, frozen=True):
    """Requests to another server."""

    timeout_s: float = 10.0
    """For a whole request and its response."""
    username: str | None = None
    password_file: str | None = None
    bearer_token_file: str | None = None
    ca: str | None = None
    """Certificates to trust, in a PEM file; null: the system's."""
    certificate: str | None = None
    """The client's certificate for mutual TLS, with its `key`; PEM files."""
    key: str | None = None
    headers: dict[str, str] = {}
    """Additional headers, for example `X-Scope-OrgID` for Mimir."""
