"""Posts notifications to one URL."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from perfd.config import WebhookReceiver
from perfd.errors import ConfigError
from perfd.exporters.http_post import Poster
from perfd.exporters.notifications.notification_sender import OutgoingMessage, SendResult
from perfd.exporters.notifications.notification_text import document, one_line, slack
from perfd.exporters.notifications.secret_source import SecretSource, without

_HEADERS = {"Content-Type": "application/json"}
_MAY_PASS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT})
"""Refusals that a new secret or another attempt ends."""


class WebhookSender:
    """Sends JSON. Raises `ConfigError` for a URL that cannot be used."""

    def __init__(self, config: WebhookReceiver, *, key: str) -> None:
        self._config = config
        self._key = key
        self._secret = SecretSource(file=config.url_file, variable=config.url_variable, key=f"{key}.url")
        if bool(self._secret) == (config.url is not None):
            raise ConfigError(f"{key}: set one of `url`, `url_file` and `url_variable`.")
        self._url = ""
        self._poster = self._open(self._read())

    def send(self, message: OutgoingMessage) -> SendResult:
        """One POST; it never raises for errors of the network, the receiver or a secret."""
        try:
            url = self._read()
            if url != self._url:
                self._poster.close()
                self._poster = self._open(url)
        except ConfigError as error:
            return SendResult(sent=False, retry=True, text=str(error))
        answer = self._poster.post(self._body(message), _HEADERS)
        if answer.taken:
            return SendResult(sent=True)
        secrets = (url, urlsplit(url).path.strip("/")) if self._secret else ()
        text = one_line(without(answer.text, *secrets))
        return SendResult(
            sent=False,
            retry=answer.worth_retrying or answer.status in _MAY_PASS,
            text=f"{answer.status}: {text}" if answer.status else text,
            retry_after_s=answer.retry_after_s,
        )

    def close(self) -> None:
        self._poster.close()

    def _read(self) -> str:
        return self._secret.read() if self._config.url is None else self._config.url

    def _open(self, url: str) -> Poster:
        # Checked here, because the messages of `Poster` have the URL in them.
        try:
            parts = urlsplit(url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or not (url.isascii() and url.isprintable() and " " not in url):
            raise ConfigError(f"{self._key}: the URL is not an http or https URL.")
        if "@" in parts.netloc:
            raise ConfigError(f"{self._key}: the URL must not have a password; use `http.password_file`.")
        poster = Poster(url, self._config.http, key=f"{self._key}.http")
        self._url = url
        return poster

    def _body(self, message: OutgoingMessage) -> bytes:
        if self._config.format == "slack":
            return msgspec.json.encode(slack(message))
        return msgspec.json.encode(document(message, receiver=self._config.name))
