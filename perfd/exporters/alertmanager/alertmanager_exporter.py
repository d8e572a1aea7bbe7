"""Delivers the alerts of the embedded engine to one Alertmanager by its API v2."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfd.config import AlertmanagerConfig
from perfd.errors import ConfigError
from perfd.exporters.alertmanager.api_v2 import KEY, ApiV2, timestamp
from perfd.exporters.alertmanager.delivery import AlertDelivery, OutgoingAlert, wire_alert
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.http_post import PostResponse
from perfd.exporters.labels import check_external_labels
from perfd.exporters.links import complete_runbook, job_page
from perfd.model import Alert

log = logging.getLogger(__name__)
_PER_REQUEST = 256
"""Alerts of one request, so that a backlog is sent in requests of bounded size."""


class AlertmanagerExporter:
    """Sends all alerts to one Alertmanager; each of a cluster has its own exporter, so that none waits."""

    def __init__(self, url: str, config: AlertmanagerConfig, context: ExporterContext) -> None:
        if not config.resend_s > 0 or config.max_alerts < 1:
            raise ConfigError(f"{KEY}: `resend_s` must be positive and `max_alerts` at least 1.")
        self._labels = check_external_labels(config.external_labels, key=KEY)
        self._external_url = config.external_url
        self._url = url
        self._alerts = ApiV2(url, "alerts", config)
        self._deliveries = AlertDelivery(resend_s=config.resend_s, max_alerts=config.max_alerts)
        self._backoff = Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s)
        self._clock = context.clock
        self._tally = context.tally
        self._chance = context.chance
        self._now_unix_s: float | None = None
        self._refused = False

    def export(self, round_: Round) -> None:
        self._now_unix_s = round_.time_unix_s
        changes = [self._labelled(alert) for alert in round_.changes]
        firing = [self._labelled(alert) for alert in round_.firing]
        self._tally.lost += self._deliveries.update(changes, firing, round_.time_unix_s)
        if self._backoff.due(self._clock.monotonic_s()):
            self._send(round_.time_unix_s)
        self._tally.pending = len(self._deliveries)

    def close(self) -> None:
        # Firing alerts are not resolved: perfd's exit does not change the job's state.
        if self._now_unix_s is not None:
            self._send(self._now_unix_s)
        self._alerts.close()

    def _labelled(self, alert: Alert) -> Alert:
        return replace(alert, labels={**self._labels, **alert.labels})

    def _send(self, now_unix_s: float) -> None:
        sent_again = False
        while chunk := self._deliveries.due(now_unix_s)[:_PER_REQUEST]:
            answer = self._alerts.post(self._body(chunk))
            if not answer.taken and answer.worth_retrying:
                self._fail(answer)
                return
            self._backoff = self._backoff.succeeded()
            self._note(answer, len(chunk))
            if answer.reconnected and not sent_again:
                # It may be another process than the one that got the alerts before.
                self._deliveries.send_again()
                sent_again = True
            # A refused alert waits for its next time; otherwise it would be refused every second.
            self._deliveries.mark_sent(chunk, now_unix_s)

    def _note(self, answer: PostResponse, alerts: int) -> None:
        if answer.taken:
            self._tally.sent += alerts
        else:
            self._tally.lost += alerts
            if not self._refused:
                log.error(
                    "An Alertmanager refuses alerts.",
                    extra={"url": self._url, "status": answer.status, "answer": answer.text},
                )
        self._refused = not answer.taken

    def _fail(self, answer: PostResponse) -> None:
        self._tally.retries += 1
        if self._backoff.failures == 0:
            log.warning(
                "An Alertmanager is unreachable; alerts wait.",
                extra={"url": self._url, "status": answer.status, "answer": answer.text},
            )
        # When it is back it may have lost its state.
        self._deliveries.send_again()
        self._backoff = self._backoff.failed(
            self._clock.monotonic_s(), chance=self._chance(), at_least_s=answer.retry_after_s
        )

    def _body(self, chunk: Sequence[OutgoingAlert]) -> list[dict[str, Any]]:
        alerts = [wire_alert(one, job_page(self._external_url, one.alert.job)) for one in chunk]
        for alert in alerts:
            alert["annotations"] = complete_runbook(alert["annotations"], self._external_url)
            for key in ("startsAt", "endsAt"):
                alert[key] = timestamp(alert[key])
        return alerts
