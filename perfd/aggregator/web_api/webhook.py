"""The receiver of Alertmanager's webhooks: who may speak, what is understood, and what is answered."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from perfd.aggregator.alerts import Decision, WebhookOutcome, read_webhook
from perfd.config import WebhookConfig
from perfd.errors import ConfigError, PerfdError
from perfd.model import Alert
from perfd.net import Handler, Request, Response, error_response, json_response
from perfd.net.access_control import BearerToken

log = logging.getLogger(__name__)
PATH = "/api/v1/webhooks/alertmanager"
SCHEMA = "perfd.webhook/1"
_KEY = "webhook.token_file"

Receive = Callable[[Sequence[Alert]], Sequence[Decision]]
"""Decides on alerts, in order."""


class Webhook:
    """One route, which is there only with a token. Raises `ConfigError` when its file cannot be used.

    May be called by many threads.
    """

    def __init__(self, config: WebhookConfig) -> None:
        path = config.token_file
        self._token = None if path is None else BearerToken(path, key=_KEY)
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._alerts: Counter[str] = Counter()

    def routes(self, receive: Receive) -> dict[str, Handler]:
        """The route, which hands alerts on."""
        return {PATH: lambda request: self._answer(request, receive)}

    def requests(self) -> Mapping[str, int]:
        """How many requests had each outcome."""
        with self._lock:
            return dict(self._requests)

    def alerts(self) -> Mapping[str, int]:
        """How many alerts had each outcome."""
        with self._lock:
            return dict(self._alerts)

    def _answer(self, request: Request, receive: Receive) -> Response:
        if self._token is None:
            return self._error(
                404, "disabled", f"This receiver is off: set {_KEY} in the aggregator's configuration."
            )
        if request.method != "POST":
            return self._error(405, "malformed", "Alertmanager sends its webhooks by POST.")
        try:
            right = self._token.shown_in(request.headers.get("authorization", ""))
        except ConfigError as error:
            log.error("The webhook's token cannot be read.", extra={"error": str(error)})  # noqa: TRY400  (the sentence says all)
            return self._error(503, "unavailable", "The aggregator cannot read its token; its log says why.")
        if not right:
            return self._error(401, "unauthorized", "The bearer token is missing or wrong.")
        try:
            alerts = read_webhook(request.body)
        except PerfdError as error:
            return self._error(400, "malformed", str(error))
        return self._decided(receive(alerts))

    def _decided(self, decisions: Sequence[Decision]) -> Response:
        with self._lock:
            self._requests["accepted"] += 1
            self._alerts.update(decision.outcome.value for decision in decisions)
        for decision in decisions:
            if decision.outcome is WebhookOutcome.UNKNOWN_JOB:
                log.warning(
                    "An alert of an unknown job captures nothing.",
                    extra={"alert": decision.alert.name, "reason": decision.reason},
                )
        return json_response({"schema": SCHEMA, "alerts": [decision.to_json() for decision in decisions]})

    def _error(self, status: int, outcome: str, message: str) -> Response:
        with self._lock:
            self._requests[outcome] += 1
        headers = {401: {"WWW-Authenticate": "Bearer"}, 405: {"Allow": "POST"}}.get(status, {})
        return error_response(status, message, headers)
