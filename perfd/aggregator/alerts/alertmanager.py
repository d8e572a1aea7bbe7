"""Alerts that an Alertmanager tells of, and what can become of each. Pure: bytes in, records out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from perfd.errors import PerfdError

_VERSION = "4"
_UNNAMED = "unnamed"


def server_of(labels: Mapping[str, str]) -> str:
    """The inference server that labels name, as `NODE/SERVER`; empty when they name none.

    Prometheus gives its alerts a `job` too, that of the scrape.
    """
    node, server = labels.get("node"), labels.get("server")
    return f"{node}/{server}" if node and server else ""


class WebhookOutcome(StrEnum):
    """What became of one alert of a webhook."""

    STARTED = "started"
    """A capture was asked for; /api/v1/captures tells how it goes on."""
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
class ReceivedAlert:
    """One alert of a webhook."""

    name: str
    labels: Mapping[str, str]
    resolved: bool
    fired_at_unix_s: float
    """When it began to fire, by the clock of whoever evaluated the rule."""

    def job(self, known: Collection[str]) -> str:
        """The job that it is of; an alert that names none is of the only job there is."""
        return self.labels.get("job") or (next(iter(known)) if len(known) == 1 else "")

    @property
    def server(self) -> str:
        """The inference server that it is of, as `NODE/SERVER`; empty when it is of none."""
        return server_of(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of one alert, and the capture that it started or was refused."""

    alert: ReceivedAlert
    outcome: WebhookOutcome
    capture_id: str | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """One entry of schema perfd.webhook/1; docs/api.md describes it."""
        return {
            "name": self.alert.name,
            "job": self.alert.labels.get("job"),
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


def read_webhook(body: bytes) -> Sequence[ReceivedAlert]:
    """The alerts of a webhook of version 4; raises `PerfdError` that says what is wrong with it.

    https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
    """
    try:
        webhook = msgspec.json.decode(body, type=_Webhook)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PerfdError(f"This is not the webhook of an Alertmanager: {error}.") from error
    if webhook.version != _VERSION:
        raise PerfdError(f"Alertmanager's webhook has version {webhook.version!r} here; {_VERSION} is known.")
    return [
        ReceivedAlert(
            name=alert.labels.get("alertname") or _UNNAMED,
            labels=alert.labels,
            resolved=alert.status != "firing",
            fired_at_unix_s=alert.startsAt.timestamp(),
        )
        for alert in webhook.alerts
    ]


def unknown_job(alert: ReceivedAlert) -> str:
    """What to say of an alert of no job or server that is known."""
    if alert.server:
        return f"There is no server {alert.server}; /api/v1/servers lists them."
    if alert.labels.get("exported_job"):
        return "Its job is in `exported_job`: set `honor_labels: true` where Prometheus scrapes perfd."
    job = alert.labels.get("job")
    if job is None:
        return "It has no label `job`, and there is not just one job."
    return f"There is no job {job!r}; /api/v1/jobs lists them."
