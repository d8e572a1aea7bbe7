"""POST requests to one address over a persistent connection, with limits on time and answer size."""

from __future__ import annotations

import base64
import http.client
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from perfd import __version__
from perfd.config import HttpClientConfig
from perfd.errors import ConfigError, reason_of
from perfd.net import BoundedConnection, BoundedTlsConnection

_MAX_ANSWER_BYTES = 4096
"""How much of an answer is read: enough for the reason of a refusal."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostResponse:
    """The response; status 0 if none came."""

    status: int
    text: str = ""
    retry_after_s: float | None = None
    reconnected: bool = False
    """The persistent connection had died, and this response came over a new one."""

    @property
    def taken(self) -> bool:
        """Whether the receiver accepted it."""
        return 200 <= self.status < 300

    @property
    def worth_retrying(self) -> bool:
        """Whether a retry may succeed: no response, 429, or 5xx."""
        return self.status in {0, http.HTTPStatus.TOO_MANY_REQUESTS} or self.status >= 500


class Poster:
    """Sends bodies to one URL. Raises `ConfigError` if the URL or a secret file cannot be used.

    Secret files are read for each request, so that a new token takes effect with the next one.
    """

    def __init__(
        self, url: str, config: HttpClientConfig, *, key: str, max_answer_bytes: int = _MAX_ANSWER_BYTES
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{key}: {url!r} is not an http or https URL.")
        self._host, self._port = parts.hostname, _port(parts, key)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._config = config
        self._max_answer_bytes = max_answer_bytes
        self._key = key
        self._context = _context(config, key) if parts.scheme == "https" else None
        self._connection: BoundedConnection | None = None
        self._closed_at_once = False
        _authorization(config, key)
        _check_headers(config, key)

    def post(self, body: bytes, headers: Mapping[str, str], *, path: str = "") -> PostResponse:
        """Send one body, to the URL followed by `path`.

        It never raises for errors of the network, the receiver or a secret file, and returns within
        `timeout_s`, however slowly the receiver reads and answers.
        """
        try:
            authorization = _authorization(self._config, self._key)
        except ConfigError as error:
            return PostResponse(status=0, text=str(error))
        sent = {"User-Agent": f"perfd/{__version__}", **self._config.headers, **authorization, **headers}
        kept = self._connection is not None
        deadline_s = time.monotonic() + self._config.timeout_s
        answer = self._attempt(path, body, sent, deadline_s)
        if kept and answer.status == 0 and self._closed_at_once:
            # The receiver, or a proxy, closed an idle connection: not a failure yet.
            answer = replace(self._attempt(path, body, sent, deadline_s), reconnected=True)
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def _attempt(self, path: str, body: bytes, headers: Mapping[str, str], deadline_s: float) -> PostResponse:
        self._closed_at_once = False
        try:
            return self._once(path, body, headers, deadline_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._closed_at_once = isinstance(error, ConnectionError)
            return PostResponse(status=0, text=str(error) or type(error).__name__)

    def _once(self, path: str, body: bytes, headers: Mapping[str, str], deadline_s: float) -> PostResponse:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.deadline_s = deadline_s
        self._connection.request("POST", self._path + path, body, dict(headers))
        response = self._connection.getresponse()
        text = response.read(self._max_answer_bytes).decode(errors="replace")
        if not response.isclosed() or response.will_close:
            # These interfaces never answer more than we read: reconnect.
            self.close()
        return PostResponse(
            status=response.status,
            text=text.strip(),
            retry_after_s=_seconds(response.getheader("Retry-After")),
        )

    def _connect(self) -> BoundedConnection:
        if self._context is not None:
            return BoundedTlsConnection(self._host, self._port, context=self._context)
        return BoundedConnection(self._host, self._port)


def read_secret(path: str, key: str) -> str:
    """The first line of a secret file; raises `ConfigError` if there is none."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: cannot read {path}: {reason_of(error)}.") from error
    if not secret or not secret.isprintable():
        raise ConfigError(f"{key}: {path} must contain one line, the secret.")
    return secret


def _check_headers(config: HttpClientConfig, key: str) -> None:
    for name, value in config.headers.items():
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"{key}: {name!r}: {value!r} is not a valid HTTP header.")


def _port(parts: SplitResult, key: str) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise ConfigError(f"{key}: invalid port in {parts.geturl()!r}: {error}.") from error


def _authorization(config: HttpClientConfig, key: str) -> dict[str, str]:
    if config.bearer_token_file is not None and config.username is not None:
        raise ConfigError(f"{key}: set `bearer_token_file` or `username`, not both.")
    if config.bearer_token_file is not None:
        return {"Authorization": "Bearer " + read_secret(config.bearer_token_file, key)}
    if config.username is not None:
        password = read_secret(config.password_file, key) if config.password_file else ""
        return {
            "Authorization": "Basic " + base64.b64encode(f"{config.username}:{password}".encode()).decode()
        }
    return {}


def _context(config: HttpClientConfig, key: str) -> ssl.SSLContext:
    if (config.certificate is None) != (config.key is None):
        raise ConfigError(f"{key}: `certificate` and `key` must be set together.")
    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.certificate is not None:
            context.load_cert_chain(config.certificate, config.key)
    except OSError as error:
        named = ", ".join(name for name in (config.ca, config.certificate, config.key) if name)
        raise ConfigError(f"{key}: cannot use the certificates in {named}: {error}.") from error
    return context


def _seconds(text: str | None) -> float | None:
    # A date is legal too, but rare; without a number the backoff decides.
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
