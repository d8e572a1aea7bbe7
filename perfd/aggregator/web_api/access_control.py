"""Who may change something over HTTP, for example start a capture. Reading is open to all who reach it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from perfd.aggregator.web_api.bearer_token import BearerToken
from perfd.config import AggregatorConfig
from perfd.errors import ConfigError
from perfd.net import Handler, Request, Response, is_loopback, split_address

log = logging.getLogger(__name__)
_KEY = "http_token_file"
_READING = frozenset({"GET", "HEAD"})


class AccessControl:
    """Guards routes, from any thread. Raises `ConfigError` when the token's file cannot be used.

    With a token, who changes something has to show it. Without one only this machine may, and no page that
    a browser here has open: such a page can name itself so that it reaches loopback (DNS rebinding), but
    neither call itself `localhost` nor send JSON without being asked for leave, which nobody gives.
    """

    def __init__(self, config: AggregatorConfig) -> None:
        path = config.http_token_file
        self._token = None if path is None else BearerToken(path, key=_KEY)
        self._address = config.http_listen

    def guard(self, routes: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same routes, where requests that change something are refused unless they may."""
        return {path: self._guarded(handler) for path, handler in routes.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def answer(request: Request) -> Response:
            refusal = None if request.method in _READING else self._refusal(request)
            return handler(request) if refusal is None else refusal

        return answer

    def _refusal(self, request: Request) -> Response | None:
        refusal = self._unknown(request) if self._token is None else self._wrong(self._token, request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if refusal is None and kind != "application/json":
            return _error(415, "Send JSON and say so: Content-Type: application/json.")
        return refusal

    def _wrong(self, token: BearerToken, request: Request) -> Response | None:
        try:
            right = token.shown_in(request.headers.get("authorization", ""))
        except ConfigError as error:
            log.error("The token for HTTP cannot be read.", extra={"error": str(error)})  # noqa: TRY400  (the sentence says all)
            return _error(503, "The aggregator cannot read its token; its log says why.")
        if right:
            return None
        return _error(
            401,
            f"Show the bearer token that the aggregator's {_KEY} holds; `perfd capture` has --token-file.",
            {"WWW-Authenticate": "Bearer"},
        )

    def _unknown(self, request: Request) -> Response | None:
        if self._address is None or not is_loopback(split_address(self._address)[0]):
            return _error(
                403,
                f"This aggregator listens on {self._address}, which other machines may reach: "
                f"set {_KEY} in its configuration, and whoever shows that token may do this.",
            )
        if not is_loopback(_host_of(request)):
            return _error(
                403, f"Without {_KEY} this is for who calls the aggregator 127.0.0.1, [::1] or localhost."
            )
        return None


def _host_of(request: Request) -> str:
    try:
        return urlsplit("//" + request.headers.get("host", "")).hostname or ""
    except ValueError:
        return ""


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode({"error": message}) + b"\n"
    return Response(status=status, body=body, headers=headers or {})
