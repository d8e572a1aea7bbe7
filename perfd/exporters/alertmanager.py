"""Delivers the alerts of the embedded engine to Alertmanagers by their API v2."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from perfd.config import AlertmanagerConfig
from perfd.exporters.backoff import Backoff
from perfd.exporters.contract import AlertUpdate, ExporterContext, Round
from perfd.exporters.delivery import Deliveries, Outgoing, wire_alert
from perfd.exporters.post import Poster

log = logging.getLogger(__name__)
_KEY = "exporters.alertmanager"
_PATH = "/api/v2/alerts"
_PER_REQUEST = 256
_HEADERS = {"Content-Type": "application/json"}


class AlertmanagerExporter:
    """Tells each of the configured Alertmanagers of all alerts; those of a cluster share what they know."""

    def __init__(self, config: AlertmanagerConfig, context: ExporterContext) -> None:
        self._labels = dict(config.external_labels)
        self._tally = context.tally
        self._targets = [_Target(url, config, context) for url in config.urls]

    def export(self, round_: Round) -> None:
        changes = [self._labelled(alert) for alert in round_.changes]
        firing = [self._labelled(alert) for alert in round_.firing]
        for target in self._targets:
            target.export(changes, firing, round_.time_unix_s)
        self._tally.pending = sum(target.pending for target in self._targets)

    def close(self) -> None:
        for target in self._targets:
            target.close()

    def _labelled(self, alert: AlertUpdate) -> AlertUpdate:
        return AlertUpdate(
            name=alert.name,
            labels={**self._labels, **alert.labels},
            annotations=alert.annotations,
            value=alert.value,
            fired_at_unix_s=alert.fired_at_unix_s,
            resolved_at_unix_s=alert.resolved_at_unix_s,
        )


class _Target:
    def __init__(self, url: str, config: AlertmanagerConfig, context: ExporterContext) -> None:
        base = url.rstrip("/")
        self._poster = Poster(base if base.endswith(_PATH) else base + _PATH, config.http, key=_KEY)
        self._url = url
        self._external_url = config.external_url
        self._deliveries = Deliveries(resend_s=config.resend_s, max_alerts=config.max_alerts)
        self._backoff = Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s)
        self._clock = context.clock
        self._tally = context.tally
        self._now_unix_s: float | None = None

    @property
    def pending(self) -> int:
        return len(self._deliveries)

    def export(
        self, changes: Sequence[AlertUpdate], firing: Sequence[AlertUpdate], now_unix_s: float
    ) -> None:
        self._now_unix_s = now_unix_s
        self._tally.lost += self._deliveries.update(changes, firing)
        if self._backoff.due(self._clock.monotonic_s()):
            self._send(now_unix_s)

    def close(self) -> None:
        # What fires is not resolved: perfd's going away says nothing about the job.
        if self._now_unix_s is not None:
            self._send(self._now_unix_s)
        self._poster.close()

    def _send(self, now_unix_s: float) -> None:
        due = self._deliveries.due(now_unix_s)
        for start in range(0, len(due), _PER_REQUEST):
            chunk = due[start : start + _PER_REQUEST]
            answer = self._poster.post(self._body(chunk), _HEADERS)
            if not answer.taken and answer.worth_retrying:
                self._fail(answer.status, answer.text, answer.retry_after_s)
                return
            self._backoff = self._backoff.succeeded()
            if answer.taken:
                self._tally.sent += len(chunk)
            else:
                self._tally.lost += len(chunk)
                log.error(
                    "An Alertmanager refuses alerts.",
                    extra={"url": self._url, "status": answer.status, "answer": answer.text},
                )
            # What is refused is not told again before its time comes: it would be refused each second.
            self._deliveries.told(chunk, now_unix_s)

    def _fail(self, status: int, text: str, retry_after_s: float | None) -> None:
        self._tally.retries += 1
        if self._backoff.failures == 0:
            log.warning(
                "An Alertmanager cannot be reached; alerts wait for it.",
                extra={"url": self._url, "status": status, "answer": text},
            )
        self._backoff = self._backoff.failed(self._clock.monotonic_s(), retry_after_s)

    def _body(self, chunk: Sequence[Outgoing]) -> bytes:
        alerts = [wire_alert(one, self._generator_url(one.alert)) for one in chunk]
        for alert in alerts:
            for key in ("startsAt", "endsAt"):
                alert[key] = datetime.fromtimestamp(alert[key], UTC).isoformat(timespec="milliseconds")
        return msgspec.json.encode(alerts)

    def _generator_url(self, alert: AlertUpdate) -> str | None:
        if self._external_url is None:
            return None
        base = self._external_url.rstrip("/")
        return f"{base}/api/v1/jobs/{quote(alert.job, safe='')}" if alert.job else f"{base}/api/v1/alerts"
