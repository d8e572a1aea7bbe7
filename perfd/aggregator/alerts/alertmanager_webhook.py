"""Alerts that an Alertmanager sends, and the possible outcomes of each. Pure: bytes in, records out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from perfd.errors import PerfdError
from perfd.model import JOB_LABEL, Alert, AlertState

_VERSION = "4"
_UNNAMED = "unnamed"


class WebhookOutcome(StrEnum):
    """What became of one alert of a webhook."""

    STARTED = "started"
    """A capture was requested; /api/v1/captures shows its progress."""
    REFUSED = "refused"
    """The capture policy said no: cooldown, budget, another capture; the record of it says why."""
    REPEATED = "repeated"
    """This firing was decided on before."""
    RESOLVED = "resolved"
    """It ended, which captures nothing."""
    NO_CAPTURE = "no_capture"
    """It has no `capture` label."""
    UNKNOWN_JOB = "unknown_job"
    """Its `job` label names no job of this aggregator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of one alert, and the capture that it started or was refused."""

    alert: Alert
    outcome: WebhookOutcome
    capture_id: str | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """One entry of schema perfd.webhook/1; docs/api.md describes it."""
        return {
            "name": self.alert.name,
            "job": self.alert.job or None,
            "outcome": self.outcome.value,
            "capture": self.capture_id,
            "reason": self.reason,
        }


class _Alert(msgspec.Struct, frozen=True):
    status: str
    labels: dict[str, str]
    startsAt: datetime  # noqa: N815  (Alertmanager's name)


class _Webhook(msgspec.Struct, frozen=True):
    version: str
    alerts: list[_Alert]


_WEBHOOKS = msgspec.json.Decoder(_Webhook)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


def read_webhook(body: bytes) -> Sequence[Alert]:
    """The alerts of a webhook of version 4; raises `PerfdError` that says what is wrong with it.

    https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
    """
    try:
        webhook = _WEBHOOKS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PerfdError(f"This is not the webhook of an Alertmanager: {error}.") from error
    if webhook.version != _VERSION:
        raise PerfdError(f"Alertmanager's webhook has version {webhook.version!r} here; {_VERSION} is known.")
    return [
        Alert(
            name=alert.labels.get("alertname") or _UNNAMED,
            labels=alert.labels,
            state=AlertState.FIRING if alert.status == "firing" else AlertState.RESOLVED,
            fired_at_unix_s=alert.startsAt.timestamp(),
        )
        for alert in webhook.alerts
    ]


def job_of(alert: Alert, known: Collection[str]) -> str:
    """The job that a received alert is about; one that names none is about the only job there is."""
    return alert.job or (next(iter(known)) if len(known) == 1 else "")


def unknown_job(alert: Alert) -> str:
    """What to say of an alert of no job or server that is known."""
    if alert.server:
        return f"There is no server {alert.server}; /api/v1/servers lists them."
    if not alert.job:
        return f"It has no label `{JOB_LABEL}`, and there is not just one job."
    return f"There is no job {alert.job!r}; /api/v1/jobs lists them."
